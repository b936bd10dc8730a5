from typing import Any

import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.trainers.prompt_fedper import PromptFedPer
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import Play, context_loss


def make(tokens: int, **options: Any) -> PromptFedPer:
    return PromptFedPer(shared_tokens=tokens, **({"epochs": 5} | options))


@pytest.mark.parametrize("tokens", [3, 8])
def test_all_tokens_shared_is_promptfl_exactly(tokens: int, play: Play) -> None:
    whole = play(make(tokens), rounds=2)
    plain = play(PromptFL(epochs=5), rounds=2)
    assert torch.equal(whole.server["shared"], plain.server["context"])
    assert not any(whole.kept.values())


@pytest.mark.parametrize("tokens", [1, 2])
def test_first_tokens_are_sent_and_the_others_kept(tokens: int, play: Play) -> None:
    played = play(make(tokens), rounds=2)
    for message in played.messages:
        if message.kind != "release":
            assert message.tensors["shared"].shape == (tokens, 5)
    for client, kept in played.kept.items():
        assert kept["private"].shape == (3 - tokens, 5)
        own = played.models[client]["context"]
        assert torch.equal(own[:tokens], played.server["shared"])
        assert torch.equal(own[tokens:], kept["private"])


def test_clients_begin_with_private_tokens_of_their_own(task: Task) -> None:
    trainer = make(1)
    one, other = (
        trainer.start_client(task, client, Seeds(0))["private"]
        for client in ("client-0", "client-1")
    )
    assert not torch.equal(one, other)


def test_public_records_teach_the_tokens_that_are_missing(
    play: Play, task: Task
) -> None:
    played = play(make(2, epochs=30, learning_rate=0.02), rounds=2)
    reconstructed, again = (
        played.rebuild("server", "client-1").model["context"] for _ in range(2)
    )
    untrained = torch.cat([reconstructed[:2], torch.zeros(1, 5)])
    taught, before = (
        float(context_loss(task, context, task.public))
        for context in (reconstructed, untrained)
    )
    assert taught < before - 0.05
    assert torch.equal(again, reconstructed)
