"""The server's weighted mean, of every trainer whose prompts are averaged by it."""

import pytest
import torch

from privaudit.federation.trainer import TRAINERS, Task
from tests.toy_federation import AT, Play

SHARED = {
    "promptfl": "context",
    "promptfl-ft": "context",
    "prompt-fedprox": "context",
    "prompt-fedper": "shared",
    "pfedprompt": "context",
    "fedotp": "global",
    "fedpgp": "context",
}


@pytest.mark.parametrize(("name", "shared"), SHARED.items())
def test_the_server_weighs_by_hand(name: str, shared: str, task: Task) -> None:
    """Two clients with 1 and 3 records: (1 * 2 + 3 * 6) / 4 = 5; nobody: no change."""
    trainer = TRAINERS.find(name)()
    sums = {shared: torch.tensor([[1 * 2.0 + 3 * 6.0]]), "weight": torch.tensor(4.0)}
    after, events = trainer.aggregate(task, {}, sums, AT)
    assert after[shared].item() == 5.0
    assert events == ()
    nothing = {shared: torch.zeros(1, 1), "weight": torch.tensor(0.0)}
    unchanged, events = trainer.aggregate(task, after, nothing, AT)
    assert unchanged is after
    assert events == ()


@pytest.mark.parametrize("name", ["promptfl-ft", "pfedprompt"])
def test_what_is_sent_is_promptfls(name: str, play: Play) -> None:
    mine, plain = (
        play(TRAINERS.find(which)(epochs=4), rounds=2) for which in (name, "promptfl")
    )
    for one, other in zip(mine.rounds, plain.rounds, strict=True):
        assert [m.describe() for m in one.messages] == [
            m.describe() for m in other.messages
        ]
