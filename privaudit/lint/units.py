"""In what units noise and uploads stand beside a run's mechanisms."""

from privaudit.lint.evidence import Evidence
from privaudit.prompts.private_training import PrivateTrainer


def event_unit(evidence: Evidence) -> float:
    """Return what 1 in an upload is in the units of the mechanisms' clip norms."""
    if isinstance(evidence.trainer, PrivateTrainer):
        return evidence.trainer.event_unit(evidence.task)
    return 1.0
