from typing import Any

import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task
from privaudit.federated.transcript import Message
from privaudit.trainers.promptfl import PromptFL
from privaudit.trainers.promptfl_ft import FineTunedPromptFL

Shards = dict[str, Records]


def run(
    trainer: Any, task: Task, shards: Shards, participation: float = 1.0
) -> tuple[Federation, list[Message]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    messages: list[Message] = []
    for index in range(2):
        (record,) = run_round(
            trainer, task, [federation], index, participation=participation
        )
        messages += record.messages
    return federation, [*messages, *give_away(trainer, task, federation, 2)[1]]


def make(**options: Any) -> FineTunedPromptFL:
    return FineTunedPromptFL(**({"epochs": 4, "tuning_epochs": 6} | options))


def test_what_is_sent_is_promptfls(task: Task, shards: Shards) -> None:
    _, tuned = run(make(), task, shards)
    _, plain = run(PromptFL(epochs=4), task, shards)
    for one, other in zip(tuned[:12], plain[:12], strict=True):
        assert one.describe() == other.describe()


def test_full_batches_without_momentum_are_tuned_as_if_trained_for_longer(
    task: Task, shards: Shards
) -> None:
    steps: dict[str, Any] = {"batch_size": 0, "momentum": 0.0, "learning_rate": 0.05}
    trainer, longer = make(**steps), PromptFL(epochs=10, **steps)
    tuned = Federation.begin(trainer, task, shards, Seeds(0))
    run_round(trainer, task, [tuned], 0)
    plain = Federation.begin(longer, task, shards, Seeds(0))
    (record,) = run_round(longer, task, [plain], 0)
    for message in record.messages[3:]:
        want = message.tensors["context"] / message.tensors["weight"]
        got = tuned.kept[message.sender]["tuned"]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_release_is_tuned_and_who_never_trained_gets_the_average(
    task: Task, shards: Shards
) -> None:
    trainer = make()
    federation, messages = run(trainer, task, shards, participation=0.34)
    seen = {m.sender for m in messages if m.kind == "update"}
    assert 0 < len(seen) < 3
    for message in (m for m in messages if m.kind == "release"):
        is_average = torch.equal(
            message.tensors["context"], federation.server["context"]
        )
        assert is_average == (message.sender not in seen)


def test_no_tuning_keeps_the_prompt_as_sent(task: Task, shards: Shards) -> None:
    trainer = make(tuning_epochs=0)
    _, messages = run(trainer, task, shards)
    view = find_threat("server")(messages)
    release = {m.sender: m.tensors for m in messages if m.kind == "release"}
    for client in shards:
        reconstructed = trainer.reconstruct(task, view, client)
        assert reconstructed.missing == ()
        torch.testing.assert_close(reconstructed.model, dict(release[client]))


@pytest.mark.parametrize(
    ("threat", "missing"),
    [("server", 1), ("server-aggregate", 2), ("peer:client-0", 2), ("released", 0)],
)
def test_each_view_says_that_it_lacks_the_tuning(
    threat: str, missing: int, task: Task, shards: Shards
) -> None:
    trainer = make()
    federation, messages = run(trainer, task, shards)
    reconstructed = trainer.reconstruct(task, find_threat(threat)(messages), "client-2")
    assert len(reconstructed.missing) == missing
    is_tuned = torch.equal(
        reconstructed.model["context"], federation.kept["client-2"]["tuned"]
    )
    assert is_tuned == (threat == "released")
