"""Is delta small enough to mean anything?"""

from privaudit.lint.evidence import Evidence
from privaudit.lint.finding import Found, Rule


def _check(evidence: Evidence) -> Found:
    records, units = sum(len(prints) for prints in evidence.members.values()), "members"
    if evidence.unit == "client":
        records, units = len(evidence.members), "clients"
    delta = evidence.claim.delta
    if evidence.claim.epsilon and records * delta >= 1:
        yield (
            "warning",
            f"Delta is {delta:g}, and there are {records} {units}: giving away "
            f"{records * delta:.1f} of them entirely, on average, would keep the "
            f"promise. Take a delta far below {1 / records:.2g}.",
            evidence.setting("delta"),
        )


DELTA_BELOW_ONE_RECORD = Rule(
    "delta-below-one-record", "Is delta below one over the number of members?", _check
)
