"""All rules, and the run of them."""

from privaudit.lint.claim_covers_certificate import CLAIM_COVERS_CERTIFICATE
from privaudit.lint.clip_per_record import CLIP_PER_RECORD
from privaudit.lint.clipped_norms import CLIPPED_NORMS
from privaudit.lint.delta_below_one_record import DELTA_BELOW_ONE_RECORD
from privaudit.lint.duplicate_records import DUPLICATE_RECORDS
from privaudit.lint.evidence import Evidence
from privaudit.lint.finding import Finding, Rule
from privaudit.lint.noise_as_claimed import NOISE_AS_CLAIMED
from privaudit.lint.poisson_sampling import POISSON_SAMPLING
from privaudit.lint.releases_composed import RELEASES_COMPOSED
from privaudit.lint.steps_counted import STEPS_COUNTED
from privaudit.lint.stored_seeds import STORED_SEEDS
from privaudit.lint.weights_by_size import WEIGHTS_BY_SIZE
from privaudit.runs import Run

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
    """Return what all rules find in a finished run, in the rules' order.

    Where no epsilon is claimed there is nothing to hold a run to: one note says so.

    Args:
        run: A run, or what was read of one.

    Raises:
        ConfigError: The run was interrupted.
        TranscriptError: A part of it is damaged.
    """
    evidence = run if isinstance(run, Evidence) else Evidence.of(run)
    if evidence.claim.epsilon is None:
        return [_nothing_claimed(evidence)]
    return [finding for rule in RULES for finding in rule(evidence)]


def _nothing_claimed(evidence: Evidence) -> Finding:
    sentence = f"{evidence.name} claims no epsilon: there is no promise to check."
    if "epsilon" in evidence.settings:
        sentence += " Without epsilon no noise is added, whatever the mode."
        return Finding(
            "nothing-claimed",
            "note",
            sentence,
            ("epsilon=none", *evidence.setting("mode")),
        )
    return Finding("nothing-claimed", "note", sentence)
