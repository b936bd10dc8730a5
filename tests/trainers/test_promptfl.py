"""The server's weighted mean of prompts, PromptFL's own step, and no training at all."""

import pytest
import torch

from privaudit.federation.trainer import TRAINERS, Task
from privaudit.federation.transcript import SERVER
from privaudit.trainers.promptfl import PromptFL
from privaudit.trainers.zero_shot import ZeroShot
from tests.toy_federation import AT, Play, Shards, context_gradient, trained_alone

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


@pytest.mark.parametrize(("name", "shared"), SHARED.items())
def test_one_prompt_goes_down_and_comes_up_with_its_weight_and_no_more(
    name: str, shared: str, play: Play
) -> None:
    for message in play(TRAINERS.find(name)(epochs=1), rounds=1).rounds[0].messages:
        names = {shared} if message.sender == SERVER else {shared, "weight"}
        assert set(message.tensors) == names


@pytest.mark.parametrize("name", ["promptfl-ft", "pfedprompt"])
def test_what_is_sent_is_promptfls(name: str, play: Play) -> None:
    mine, plain = (
        play(TRAINERS.find(which)(epochs=4), rounds=2) for which in (name, "promptfl")
    )
    for one, other in zip(mine.rounds, plain.rounds, strict=True):
        assert [m.describe() for m in one.messages] == [
            m.describe() for m in other.messages
        ]


def test_one_full_batch_step_is_gradient_descent_by_hand(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFL(epochs=1, batch_size=0, learning_rate=0.3)
    shard, context = shards["client-0"], torch.zeros(3, 5)
    found, _ = trained_alone(trainer, task, shard, {"context": context}, {})
    want = -0.3 * context_gradient(task, context, shard)[None]
    torch.testing.assert_close(found["context"], want, rtol=1e-4, atol=1e-6)


def test_nothing_is_sent_and_everyone_uses_the_public_model(
    play: Play, task: Task
) -> None:
    played = play(ZeroShot(), rounds=1)
    assert played.rounds[0].messages == ()
    assert all(m["text"].equal(task.zero_shot) for m in played.models.values())
    assert ZeroShot().claim(task).epsilon == 0.0
