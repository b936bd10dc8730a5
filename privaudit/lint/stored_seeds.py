"""Can the noise be subtracted by whoever knows a seed?"""

from privaudit.lint.evidence import Evidence
from privaudit.lint.finding import Found, Rule


def _check(evidence: Evidence) -> Found:
    if not evidence.is_noised:
        return
    if evidence.is_open:
        yield (
            "error",
            "Others than its owner may enter the run's folder, which holds the ledger, "
            "the trace and private states. Take their rights away (chmod 700).",
            ("folder=open to others",),
        )
    if evidence.settings.get("secure_noise"):
        return
    yield (
        "warning",
        f"All noise follows from the seed {evidence.seed} in run.json, and torch's "
        "generator keeps 32 bits of any seed: whoever has it, or tries them all, "
        "subtracts the noise from what was sent. Keep the run to yourself, and train "
        "with secure_noise=true what others will see.",
        (f"seed={evidence.seed}", "secure_noise=false"),
    )


STORED_SEEDS = Rule(
    "stored-seeds", "Are seeds stored from which noise can be subtracted?", _check
)
