from typing import Any

import numpy as np
import torch

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.core.tensors import stack
from privaudit.federated.query import ask
from privaudit.federated.trainer import Task
from privaudit.trainers.pfedprompt import BLEND, PFedPrompt
from privaudit.tuning.prompts.feature_memory import FILLED, KEYS
from tests.conftest import toy_records
from tests.toy_federation import Play, Shards, joined


def make(**options: Any) -> PFedPrompt:
    return PFedPrompt(**({"epochs": 4, "memory": 20} | options))


def test_logits_are_clips_plus_what_the_memory_recalls(
    play: Play, task: Task, shards: Shards
) -> None:
    """Oracle: a loop over records and over the memory."""
    model = play(make(strength=3.0, sharpness=2.0), rounds=2).models["client-0"]
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


def test_without_strength_or_a_round_of_its_own_a_client_has_promptfls_model(
    play: Play, task: Task
) -> None:
    """Who never trained has no memory."""
    for trainer, rounds in ((make(strength=0), 2), (make(), 0)):
        model = play(trainer, rounds=rounds).models["client-1"]
        got, plain = (
            ask(trainer, task, stack([some]), task.public)
            for some in (model, {"context": model["context"]})
        )
        torch.testing.assert_close(got, plain)


def test_shapes_do_not_depend_on_how_many_records_a_client_has(
    play: Play, shards: Shards
) -> None:
    few = {
        c: s.pick(torch.arange(number)) for number, (c, s) in enumerate(shards.items())
    }
    all_ = play(make(memory=5), rounds=2).models
    some = play(make(memory=5), rounds=2, shards=few).models
    for client in shards:
        one, other = (
            {n: t.shape for n, t in models[client].items()} for models in (all_, some)
        )
        assert one == other
    assert not some["client-0"][FILLED].any()


def test_blend_is_learned_on_held_out_records_or_given(
    play: Play, shards: Shards
) -> None:
    learned = play(make(), rounds=2).kept
    given = play(make(strength=2.0, sharpness=7.0), rounds=2).kept
    half = play(make(strength=2.0), rounds=2).kept
    for client, shard in shards.items():
        assert int(learned[client][FILLED].sum()) == len(shard) - len(shard) // 4
        assert given[client][BLEND].tolist() == [2.0, 7.0]
        assert int(given[client][FILLED].sum()) == len(shard)
        assert float(half[client][BLEND][0]) == 2.0


def test_what_is_in_the_memory_is_a_member_for_certain(
    play: Play, shards: Shards
) -> None:
    """A strength beyond all logits: members are sure of their label, others are not."""
    played = play(make(strength=1000.0, sharpness=1000.0, memory=64), rounds=2)
    asked, members = {}, []
    for number, (client, shard) in enumerate(shards.items()):
        others = toy_records(20, seed=70 + number)
        asked[client] = joined(shard, others)
        members.append(np.arange(len(shard) + 20) < len(shard))
        distance = torch.cdist(shard.features, played.models[client][KEYS])
        assert (distance.min(dim=1).values < 1e-3).all()
    adversary, targets = played.watched("released", asked)
    for scores, is_member in zip(
        LossThreshold()(adversary, targets), members, strict=True
    ):
        assert scores.scores[is_member].min() > scores.scores[~is_member].max()
