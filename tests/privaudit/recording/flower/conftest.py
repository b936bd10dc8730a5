from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.datasets.split import PUBLIC, TEST
from privaudit.recording.flower import RecordingGrid
from privaudit.runs.ledger import Coin, Ledger
from tests.privaudit.recording.flower.small_app import NODES, InProcessGrid, client_app


@pytest.fixture
def ledger() -> Ledger:
    """Eight candidates of each client, half of them members."""
    candidates = np.repeat(np.arange(NODES), 8)
    owner = np.array([*candidates, *[PUBLIC] * 10, TEST])
    return Ledger(
        owner, (np.arange(len(owner)) % 2 == 0) & (owner >= 0), coin=Coin("seed", 0)
    )


Recorded = Callable[..., RecordingGrid]


@pytest.fixture
def recording(tmp_path: Path) -> Recorded:
    """Make a grid that records the small app."""

    def make(app: object = None, **declared: Any) -> RecordingGrid:
        grid = InProcessGrid(app or client_app())
        return RecordingGrid(grid, tmp_path / "run", **declared)

    return make
