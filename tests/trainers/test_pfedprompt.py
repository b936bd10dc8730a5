from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.attacks.loss_threshold import LossThreshold
from privaudit.auditing.attack import Adversary, Target
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.query import ask
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task
from privaudit.federated.transcript import Message
from privaudit.trainers.pfedprompt import BLEND, PFedPrompt
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning.prompts.feature_memory import FILLED, KEYS

Shards = dict[str, Records]


def run(trainer: Any, task: Task, shards: Shards) -> tuple[Federation, list[Message]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    messages: list[Message] = []
    for index in range(2):
        (record,) = run_round(trainer, task, [federation], index)
        messages += record.messages
    return federation, [*messages, *give_away(trainer, task, federation, 2)[1]]


def make(**options: Any) -> PFedPrompt:
    return PFedPrompt(**({"epochs": 4, "memory": 20} | options))


def released(messages: list[Message], client: str) -> dict[str, torch.Tensor]:
    return dict(find_threat("released")(messages).release_of(client).tensors)


def test_what_is_sent_is_promptfls(task: Task, shards: Shards) -> None:
    _, mine = run(make(), task, shards)
    _, plain = run(PromptFL(epochs=4), task, shards)
    for one, other in zip(mine[:12], plain[:12], strict=True):
        assert one.describe() == other.describe()


def test_logits_are_clips_plus_what_the_memory_recalls(
    task: Task, shards: Shards
) -> None:
    """Oracle: a loop over records and over the memory."""
    _, messages = run(make(strength=3.0, sharpness=2.0), task, shards)
    model = released(messages, "client-0")
    shard = shards["client-0"]
    text = task.prompts(model["context"][None])[0]
    want = []
    for feature in task.public.features[:5]:
        logits = task.logit_scale * text @ feature
        for key, label in zip(shard.features, shard.labels, strict=True):
            logits[label] += 3.0 * torch.exp(-2.0 * (1 - feature @ key))
        want.append(logits.log_softmax(dim=0))
    trainer = make()
    got = ask(trainer, task, stack([model]), task.public.pick(torch.arange(5)))[0]
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-4, atol=1e-5)


def test_without_strength_it_is_promptfl(task: Task, shards: Shards) -> None:
    trainer = make(strength=0)
    _, messages = run(trainer, task, shards)
    model = released(messages, "client-1")
    got, plain = (
        ask(trainer, task, stack([some]), task.public)
        for some in (model, {"context": model["context"]})
    )
    torch.testing.assert_close(got, plain)


def test_shapes_do_not_depend_on_how_many_records_a_client_has(
    task: Task, shards: Shards
) -> None:
    few = {
        c: s.pick(torch.arange(number)) for number, (c, s) in enumerate(shards.items())
    }
    _, all_ = run(make(memory=5), task, shards)
    _, some = run(make(memory=5), task, few)
    for client in shards:
        one, other = released(all_, client), released(some, client)
        assert {n: t.shape for n, t in one.items()} == {
            n: t.shape for n, t in other.items()
        }
    assert not released(some, "client-0")[FILLED].any()


def test_blend_is_learned_on_held_out_records_or_given(
    task: Task, shards: Shards
) -> None:
    learned, _ = run(make(), task, shards)
    for client, shard in shards.items():
        kept = learned.kept[client]
        assert int(kept[FILLED].sum()) == len(shard) - len(shard) // 4
    given, _ = run(make(strength=2.0, sharpness=7.0), task, shards)
    for client, shard in shards.items():
        assert given.kept[client][BLEND].tolist() == [2.0, 7.0]
        assert int(given.kept[client][FILLED].sum()) == len(shard)
    half, _ = run(make(strength=2.0), task, shards)
    assert all(float(kept[BLEND][0]) == 2.0 for kept in half.kept.values())


def test_what_is_in_the_memory_is_a_member_for_certain(
    task: Task, shards: Shards, make_records: Any
) -> None:
    """A strength beyond all logits: members are sure of their label, others are not."""
    trainer = make(strength=1000.0, sharpness=1000.0, memory=64)
    _, messages = run(trainer, task, shards)
    threat = find_threat("released")
    view = threat(messages)
    adversary = Adversary(trainer, task, threat, view, Seeds(1))
    targets, members = [], []
    for number, (client, shard) in enumerate(shards.items()):
        others = make_records(20, seed=70 + number)
        both = Records(
            torch.cat([shard.features, others.features]),
            torch.cat([shard.labels, others.labels]),
        )
        targets.append(Target(client, trainer.reconstruct(task, view, client), both))
        members.append(np.arange(len(both)) < len(shard))
    for scores, is_member in zip(
        LossThreshold()(adversary, targets), members, strict=True
    ):
        assert scores.scores[is_member].min() > scores.scores[~is_member].max()
    for client, shard in shards.items():
        keys = released(messages, client)[KEYS]
        distance = torch.cdist(shard.features, keys).min(dim=1).values
        assert (distance < 1e-3).all()


@pytest.mark.parametrize(
    ("threat", "missing"), [("server", 1), ("server-aggregate", 2), ("released", 0)]
)
def test_no_message_before_the_release_shows_the_memory(
    threat: str, missing: int, task: Task, shards: Shards
) -> None:
    trainer = make()
    federation, messages = run(trainer, task, shards)
    reconstructed = trainer.reconstruct(task, find_threat(threat)(messages), "client-1")
    assert len(reconstructed.missing) == missing
    assert (BLEND in reconstructed.model) == (threat == "released")
    if threat == "released":
        for name, tensor in federation.kept["client-1"].items():
            assert torch.equal(reconstructed.model[name], tensor)


def test_a_client_that_never_trained_has_no_memory(task: Task, shards: Shards) -> None:
    trainer = make()
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    model = give_away(trainer, task, federation, 0)[0]["client-0"]
    plain = {"context": model["context"]}
    got, want = (
        ask(trainer, replace(task), stack([some]), task.public)
        for some in (model, plain)
    )
    torch.testing.assert_close(got, want)
