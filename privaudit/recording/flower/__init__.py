"""Recording a Flower federation: see docs/flower.md."""

from privaudit.recording.flower.client import members_of, name_partition
from privaudit.recording.flower.grid import RecordingGrid
from privaudit.recording.flower.strategy import claim_of

__all__ = ["RecordingGrid", "claim_of", "members_of", "name_partition"]
