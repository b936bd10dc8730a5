"""Recording a Flower federation: see docs/flower.md."""

from privaudit.recording.flower.client import members_of, name_partition, noted
from privaudit.recording.flower.grid import RecordingGrid
from privaudit.recording.flower.strategy import (
    RecordedSecAggPlus,
    RecordedStrategy,
    claim_of,
)

__all__ = [
    "RecordedSecAggPlus",
    "RecordedStrategy",
    "RecordingGrid",
    "claim_of",
    "members_of",
    "name_partition",
    "noted",
]
