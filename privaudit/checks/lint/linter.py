"""All rules, and the run of them."""

from privaudit.auditing.repetition.audit_log import check_log
from privaudit.checks.lint.clients_as_drawn import CLIENTS_AS_DRAWN
from privaudit.checks.lint.clip_per_record import (
    CLIP_PER_RECORD,
    SENSITIVITY_COVERS_UNIT,
)
from privaudit.checks.lint.clipped_norms import CLIPPED_NORMS
from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Finding, Rule, Severity
from privaudit.checks.lint.noise_as_claimed import NOISE_AS_CLAIMED
from privaudit.checks.lint.noise_in_transcript import NOISE_IN_TRANSCRIPT
from privaudit.checks.lint.poisson_sampling import POISSON_SAMPLING
from privaudit.checks.lint.releases_composed import RELEASES_COMPOSED
from privaudit.checks.lint.small_rules import (
    CLAIM_COVERS_CERTIFICATE,
    DELTA_BELOW_ONE_RECORD,
    DUPLICATE_RECORDS,
    STORED_SEEDS,
    WEIGHTS_BY_SIZE,
)
from privaudit.checks.lint.steps_counted import SECURE_SUM, STEPS_COUNTED
from privaudit.checks.plugin_trial import SECONDS, try_mechanisms
from privaudit.core.errors import without_exits
from privaudit.federated.runs.ledger import known_by
from privaudit.federated.runs.runs import Run
from privaudit.recording.recorded_trainer import RecordedTrainer

RULES: tuple[Rule, ...] = (
    CLIP_PER_RECORD,
    SENSITIVITY_COVERS_UNIT,
    CLIPPED_NORMS,
    NOISE_AS_CLAIMED,
    NOISE_IN_TRANSCRIPT,
    STEPS_COUNTED,
    SECURE_SUM,
    POISSON_SAMPLING,
    CLIENTS_AS_DRAWN,
    RELEASES_COMPOSED,
    DUPLICATE_RECORDS,
    WEIGHTS_BY_SIZE,
    STORED_SEEDS,
    CLAIM_COVERS_CERTIFICATE,
    DELTA_BELOW_ONE_RECORD,
)


TRIED = "mechanisms-tried"
"""Of what a trial of another package's trainer finds; see :func:`try_mechanisms`."""


@without_exits()
def lint(run: Run | Evidence, *, trial: float = SECONDS) -> list[Finding]:
    """Check a finished run against its DP claim; return the findings of all rules.

    If the run claims no epsilon and has no noise, the only finding is a note that says so.

    Args:
        run: A finished run, or the evidence read from one.
        trial: Seconds in which the mechanisms of another package's trainer are tried
            out, with a record and without it; 0 leaves that out.

    Raises:
        ConfigError: The run was interrupted.
        MissingFileError: The log of its audits is gone.
        TranscriptError: A part of it is damaged.
    """
    if isinstance(run, Run) and run.is_stored:
        check_log(run)
    evidence = run if isinstance(run, Evidence) else Evidence.of(run)
    if evidence.claim.epsilon is None and not evidence.is_noised:
        return [_nothing_claimed(evidence)]
    found = [finding for rule in RULES for finding in rule(evidence)]
    if evidence.is_declared and not isinstance(evidence.trainer, RecordedTrainer):
        found.append(_tried(evidence, trial))
    return found


def _tried(evidence: Evidence, seconds: float) -> Finding:
    """Return what a trial of another package's trainer says of its mechanisms."""
    if not seconds:
        return Finding(TRIED, "warning", "The trainer's mechanisms were not tried out.")
    try:
        found = try_mechanisms(evidence.trainer, evidence.task, seconds=seconds)
    except Exception as error:  # whatever other people's code raises
        reason = f"{type(error).__name__}: {error}"
        said = f"The trainer's mechanisms could not be tried out ({reason})."
        return Finding(TRIED, "warning", said)
    severity: Severity = "warning" if found.too_slow else "note"
    return Finding(TRIED, "error" if found.faults else severity, str(found))


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
