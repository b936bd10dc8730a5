"""All rules, and the run of them."""

from privaudit.auditing.audit_log import check_log
from privaudit.checks.lint.accounting import (
    claim_covers_certificate,
    delta_below_one_record,
    duplicate_records,
    releases_composed,
    secure_sum,
    steps_counted,
    stored_seeds,
    weights_by_size,
)
from privaudit.checks.lint.clipping import (
    clip_per_record,
    clipped_norms,
    sensitivity_covers_unit,
)
from privaudit.checks.lint.engines import privacy_engine
from privaudit.checks.lint.evidence import Evidence, Finding, Rule, Severity
from privaudit.checks.lint.noise import noise_as_claimed, noise_in_transcript
from privaudit.checks.lint.sampling import clients_as_drawn, poisson_sampling
from privaudit.checks.plugin_trial import SECONDS, try_mechanisms
from privaudit.core.errors import without_exits
from privaudit.privacy.events import Claim
from privaudit.recording.recorded_trainer import RecordedTrainer
from privaudit.runs.ledger import known_by
from privaudit.runs.run import Run

RULES: tuple[Rule, ...] = (
    clip_per_record,
    sensitivity_covers_unit,
    clipped_norms,
    noise_as_claimed,
    noise_in_transcript,
    steps_counted,
    secure_sum,
    poisson_sampling,
    clients_as_drawn,
    privacy_engine,
    releases_composed,
    duplicate_records,
    weights_by_size,
    stored_seeds,
    claim_covers_certificate,
    delta_below_one_record,
)


TRIED = "mechanisms-tried"
"""Of what a trial of another package's trainer finds; see :func:`try_mechanisms`."""


@without_exits()
def lint(
    run: Run | Evidence, *, trial: float = SECONDS, claim: Claim | None = None
) -> list[Finding]:
    """Check a finished run against its DP claim; return the findings of all rules.

    If the run claims no epsilon and has no noise, the only finding is a note that says so.

    Args:
        run: A finished run, or the evidence read from one.
        claim: What is claimed, in place of the method's own claim.
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
    if claim is not None:
        evidence = evidence.claiming(claim)
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
    causes: tuple[str, ...] = ()
    if "epsilon" in evidence.settings:
        sentence += " Without epsilon no noise is added, whatever the mode."
        causes = ("epsilon=none", *evidence.setting("mode"))
    return Finding("nothing-claimed", "note", sentence, causes)
