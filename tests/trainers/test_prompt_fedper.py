from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.runs.config import build_trainer
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task
from privaudit.federated.transcript import Message
from privaudit.trainers.prompt_fedper import PromptFedPer
from privaudit.trainers.promptfl import PromptFL

Shards = dict[str, Records]


def run(trainer: Any, task: Task, shards: Shards) -> tuple[Federation, list[Message]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    messages: list[Message] = []
    for index in range(2):
        (record,) = run_round(trainer, task, [federation], index)
        messages += record.messages
    return federation, [*messages, *give_away(trainer, task, federation, 2)[1]]


def make(tokens: int, **options: Any) -> PromptFedPer:
    return PromptFedPer(shared_tokens=tokens, **({"epochs": 5} | options))


@pytest.mark.parametrize("tokens", [3, 8])
def test_all_tokens_shared_is_promptfl_exactly(
    tokens: int, task: Task, shards: Shards
) -> None:
    whole, _ = run(make(tokens), task, shards)
    plain, _ = run(PromptFL(epochs=5), task, shards)
    assert torch.equal(whole.server["shared"], plain.server["context"])
    assert not any(whole.kept.values())


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tokens=st.integers(1, 2))
def test_first_tokens_are_sent_and_the_others_kept(
    tokens: int, task: Task, shards: Shards
) -> None:
    federation, messages = run(make(tokens), task, shards)
    for message in messages:
        if message.kind != "release":
            assert message.tensors["shared"].shape == (tokens, 5)
    for client, kept in federation.kept.items():
        assert kept["private"].shape == (3 - tokens, 5)
        own = next(
            m for m in messages if m.kind == "release" and m.sender == client
        ).tensors["context"]
        assert torch.equal(own[:tokens], federation.server["shared"])
        assert torch.equal(own[tokens:], kept["private"])


def test_clients_begin_with_private_tokens_of_their_own(task: Task) -> None:
    trainer = make(1)
    one, other = (
        trainer.start_client(task, client, Seeds(0))["private"]
        for client in ("client-0", "client-1")
    )
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("threat", "missing"), [("server", 1), ("server-aggregate", 2), ("released", 0)]
)
def test_each_view_rebuilds_what_it_can(
    threat: str, missing: int, task: Task, shards: Shards
) -> None:
    trainer = make(2)
    federation, messages = run(trainer, task, shards)
    view = find_threat(threat)(messages)
    reconstructed = trainer.reconstruct(task, view, "client-1")
    assert len(reconstructed.missing) == missing
    assert reconstructed.estimated == (threat != "released")
    if threat == "server":
        sent = view.updates_of("client-1")[-1].tensors
        expected = sent["shared"] / sent["weight"]
    else:
        expected = federation.server["shared"]
    torch.testing.assert_close(reconstructed.model["context"][:2], expected)


def test_public_records_teach_the_tokens_that_are_missing(
    task: Task, shards: Shards
) -> None:
    trainer = make(2, epochs=30, learning_rate=0.02)
    _, messages = run(trainer, task, shards)
    view = find_threat("server")(messages)
    reconstructed = trainer.reconstruct(task, view, "client-1").model["context"]

    def loss(context: torch.Tensor) -> float:
        logits = (
            task.logit_scale * task.public.features @ task.prompts(context[None])[0].T
        )
        return float(torch.nn.functional.cross_entropy(logits, task.public.labels))

    untrained = torch.cat([reconstructed[:2], torch.zeros(1, 5)])
    assert loss(reconstructed) < loss(untrained) - 0.05
    assert torch.equal(
        trainer.reconstruct(task, view, "client-1").model["context"], reconstructed
    )


def test_no_shared_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="shared_tokens = 0"):
        build_trainer("prompt-fedper", {"shared_tokens": 0})
