from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federation.query import ask
from privaudit.federation.trainer import Cohort, Records, Task
from privaudit.trainers.pfedprompt import (
    BLEND,
    FILLED,
    KEYS,
    VALUES,
    PFedPrompt,
    choose_blend,
    fill_memory,
    recall,
)
from tests.conftest import toy_records
from tests.toy_federation import FEW, Play, Shards, joined


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


@FEW
@given(slots=st.integers(1, 20), held_out=st.sampled_from([0.0, 0.25, 0.9]))
def test_memories_have_one_shape_and_hold_nothing_held_out(
    slots: int, held_out: float, cohort: Cohort
) -> None:
    memory, rest = fill_memory(cohort, slots, held_out, Seeds(0))
    assert memory[KEYS].shape == (3, slots, 12)
    assert not (rest & ~cohort.mask).any()
    for row, size in enumerate(cohort.sizes.tolist()):
        out = max(1, int(held_out * size)) if held_out else 0
        assert int(rest[row].sum()) == out
        assert int(memory[FILLED][row].sum()) == min(slots, size - out)
        hidden = cohort.features[row][rest[row]]
        held = memory[KEYS][row][memory[FILLED][row]]
        assert not (hidden[:, None] == held[None]).all(dim=-1).any()


def test_a_clients_memory_does_not_depend_on_the_others(
    cohort: Cohort, shards: dict[str, Records]
) -> None:
    alone = Cohort.of(["client-1"], [shards["client-1"]])
    one, _ = fill_memory(alone, 6, 0.25, Seeds(3))
    all_, _ = fill_memory(cohort, 6, 0.25, Seeds(3))
    for name, tensor in one.items():
        assert torch.equal(tensor[0], all_[name][1])


def test_recall_by_hand() -> None:
    """One record of class 1 at cosine 0.6: exp(-2 * 0.4); an empty slot adds none."""
    memory = {
        KEYS: torch.tensor([[[0.6, 0.8], [0.0, 0.0]]]),
        VALUES: torch.tensor([[1, 0]]),
        FILLED: torch.tensor([[True, False]]),
    }
    got = recall(memory, torch.tensor([[[1.0, 0.0]]]), torch.tensor([2.0]), 3)
    torch.testing.assert_close(
        got, torch.tensor([[[0.0, 2.718281828**-0.8, 0.0]]]), rtol=1e-5, atol=1e-6
    )


def test_an_empty_memory_recalls_nothing(task: Task) -> None:
    memory = stack([PFedPrompt(memory=5).start_client(task, "a", Seeds(0))])
    asked = torch.ones(1, 4, task.zero_shot.shape[1])
    got = recall(memory, asked, torch.tensor([3.0]), 4)
    assert not got.any()


def test_the_blend_is_the_best_on_what_was_held_out(cohort: Cohort) -> None:
    """Oracle: every pair by itself, for every client by itself."""
    memory, rest = fill_memory(cohort, 8, 0.5, Seeds(0))
    logits = torch.zeros(3, cohort.mask.shape[1], 4)
    strengths, sharpnesses = (0.0, 1.0, 10.0), (1.0, 5.0, 20.0)
    blend = choose_blend(memory, cohort, rest, logits, strengths, sharpnesses)
    for row in range(3):
        losses = {}
        for a in strengths:
            for b in sharpnesses:
                own = {name: t[row, None] for name, t in memory.items()}
                features = cohort.features[row, None][:, rest[row]]
                answer = a * recall(own, features, torch.tensor([b]), 4)[0]
                losses[a, b] = float(
                    torch.nn.functional.cross_entropy(
                        answer, cohort.labels[row][rest[row]]
                    )
                )
        least = min(losses.values())
        assert losses[tuple(blend[row].tolist())] == pytest.approx(least)


def test_nothing_to_choose_by_takes_the_first(cohort: Cohort) -> None:
    memory, rest = fill_memory(cohort, 8, 0.0, Seeds(0))
    logits = torch.zeros(3, cohort.mask.shape[1], 4)
    blend = choose_blend(memory, cohort, rest, logits, (3.0, 1.0), (7.0, 9.0))
    assert blend.tolist() == [[3.0, 7.0]] * 3
