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
    if evidence.randomness == "system":
        return
    yield (
        "error",
        f"Repeatable, not private: all noise follows from the seed {evidence.seed} in "
        "run.json, and whoever guesses it subtracts the noise from what was sent. Keep "
        "the run to yourself; train what others will see without --seed, or with "
        "--randomness system.",
        (f"seed={evidence.seed}", "randomness=seed"),
    )


STORED_SEEDS = Rule(
    "stored-seeds", "Does noise follow from a seed that can be guessed?", _check
)
