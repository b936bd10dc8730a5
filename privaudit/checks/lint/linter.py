"""All rules, and the run of them."""

from privaudit.auditing.repetition.audit_log import check_log
from privaudit.checks.lint.clip_per_record import CLIP_PER_RECORD
from privaudit.checks.lint.clipped_norms import CLIPPED_NORMS
from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Finding, Rule
from privaudit.checks.lint.noise_as_claimed import NOISE_AS_CLAIMED
from privaudit.checks.lint.poisson_sampling import POISSON_SAMPLING
from privaudit.checks.lint.releases_composed import RELEASES_COMPOSED
from privaudit.checks.lint.small_rules import (
    CLAIM_COVERS_CERTIFICATE,
    DELTA_BELOW_ONE_RECORD,
    DUPLICATE_RECORDS,
    STORED_SEEDS,
    WEIGHTS_BY_SIZE,
)
from privaudit.checks.lint.steps_counted import STEPS_COUNTED
from privaudit.federated.runs.ledger import known_by
from privaudit.federated.runs.runs import Run

RULES: tuple[Rule, ...] = (
    CLIP_PER_RECORD,
    CLIPPED_NORMS,
    NOISE_AS_CLAIMED,
    STEPS_COUNTED,
    POISSON_SAMPLING,
    RELEASES_COMPOSED,
    DUPLICATE_RECORDS,
    WEIGHTS_BY_SIZE,
    STORED_SEEDS,
    CLAIM_COVERS_CERTIFICATE,
    DELTA_BELOW_ONE_RECORD,
)


def lint(run: Run | Evidence) -> list[Finding]:
    """Check a finished run against its DP claim; return the findings of all rules.

    If the run claims no epsilon, the only finding is a note that says so.

    Args:
        run: A finished run, or the evidence read from one.

    Raises:
        ConfigError: The run was interrupted.
        MissingFileError: The log of its audits is gone.
        TranscriptError: A part of it is damaged.
    """
    if isinstance(run, Run) and run.is_stored:
        check_log(run)
    evidence = run if isinstance(run, Evidence) else Evidence.of(run)
    if evidence.claim.epsilon is None:
        return [_nothing_claimed(evidence)]
    return [finding for rule in RULES for finding in rule(evidence)]


def _nothing_claimed(evidence: Evidence) -> Finding:
    sentence = f"{evidence.name} claims no epsilon: there is no promise to check."
    if known := known_by(evidence.coin_seed):
        sentence += f" {known}"
    if "epsilon" in evidence.settings:
        sentence += " Without epsilon no noise is added, whatever the mode."
        return Finding(
            "nothing-claimed",
            "note",
            sentence,
            ("epsilon=none", *evidence.setting("mode")),
        )
    return Finding("nothing-claimed", "note", sentence)
