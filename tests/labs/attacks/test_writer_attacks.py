"""What holds for attacks that need the language model itself, beside what it says."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, Target
from privaudit.core.tensors import stack
from privaudit.datasets.records import ANSWER, PADDING
from privaudit.federation.batches import Batch
from privaudit.federation.trainer import Cohort, Records, Task
from privaudit.models.interfaces import Tuning
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.tuning.transformers.objectives import AnswerObjective
from privaudit_labs.attacks.gradient_norm import _losses, _norms
from privaudit_labs.attacks.neighbourhood import with_neighbours
from tests.toy_federation import CLIENTS, auroc_of, play_toy
from tests.toy_language import END, toy_dialogues, toy_writing_task

NAMES = [
    *(
        name
        for name in ATTACKS.names()
        if getattr(ATTACKS.find(name), "task", "") == "generation"
        and not hasattr(ATTACKS.find(name), "slice")
    ),
    "difficulty-calibration",  # on models that write the ratio to the frozen model
]
EACH, STEPS = 40, 300


@dataclass(frozen=True)
class World:
    """Clients that memorised half of their records, or others instead."""

    adversary: Adversary
    targets: list[Target]
    is_member: list[np.ndarray]


@pytest.fixture(scope="module")
def world() -> Callable[[bool], World]:
    @cache
    def make(learns: bool) -> World:
        task = replace(toy_writing_task(), rounds=1)
        asked = {c: toy_dialogues(EACH, 50 + n) for n, c in enumerate(CLIENTS)}
        coins = [np.random.default_rng(n).random(EACH) < 0.5 for n in range(3)]
        shards = {
            client: records.pick(torch.from_numpy(coin))
            if learns
            else toy_dialogues(EACH // 2, 70 + number)
            for number, ((client, records), coin) in enumerate(
                zip(asked.items(), coins, strict=True)
            )
        }
        trainer = LoraFedAvg(epochs=STEPS, batch_size=0, learning_rate=0.01)
        played = play_toy(trainer, task=task, shards=shards)
        return World(*played.watched("server", asked), coins)

    return make


@pytest.mark.parametrize("name", NAMES)
def test_what_was_memorised_is_found(name: str, world: Callable[[bool], World]) -> None:
    """Also by the guesses, and again for candidates in another order."""
    case = world(True)
    scores = ATTACKS.find(name)()(case.adversary, case.targets)
    assert auroc_of(scores, case.is_member).low > 0.75
    right = [s.guesses == m for s, m in zip(scores, case.is_member, strict=True)]
    assert np.mean(right) > 0.6
    order = torch.randperm(EACH, generator=torch.Generator().manual_seed(0))
    shuffled = [replace(t, candidates=t.candidates.pick(order)) for t in case.targets]
    mixed = ATTACKS.find(name)()(replace(case.adversary), shuffled)
    for one, other in zip(scores, mixed, strict=True):
        assert np.isfinite(one.scores).all()
        np.testing.assert_allclose(other.scores, one.scores[order.numpy()], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_where_other_texts_were_learned(
    name: str, world: Callable[[bool], World]
) -> None:
    case = world(False)
    scores = ATTACKS.find(name)()(case.adversary, case.targets)
    found = auroc_of(scores, case.is_member, confidence=0.999)
    assert found.low < 0.5 < found.high


def test_the_ratio_to_the_frozen_model_is_that_of_the_untuned_one(
    world: Callable[[bool], World],
) -> None:
    """With a slope of one, difficulty calibration is reference-model calibration."""
    case = world(True)
    target = case.targets[0]
    (found, *_) = ATTACKS.find("difficulty-calibration")(slope=1.0)(
        case.adversary, case.targets
    )
    tuned = LoraFedAvg().tuning(
        case.adversary.task, stack([target.reconstructed.model])
    )
    ratio = [
        _loss(case.adversary.task, target.candidates, n, Tuning())
        - _loss(case.adversary.task, target.candidates, n, tuned)
        for n in range(EACH)
    ]
    np.testing.assert_allclose(found.scores, torch.cat(ratio).detach(), atol=1e-4)


def _loss(task: Task, records: Records, number: int, tuning: Tuning) -> Tensor:
    """Oracle: what trains on one record alone minimises."""
    cohort = Cohort.of(["client-0"], [records.pick(torch.tensor([number]))])
    batch = Batch(
        cohort.features, cohort.labels, cohort.mask, cohort.tokens, cohort.words
    )
    return AnswerObjective(task.language).losses(tuning, batch)


def test_the_norm_is_that_of_one_records_gradient(
    world: Callable[[bool], World],
) -> None:
    case = world(False)  # of what was memorised norms are small, and vary most
    task, target = case.adversary.task, case.targets[0]
    model = {n: t for n, t in target.reconstructed.model.items() if "layer" in n}
    for number in range(3):
        leaves = {n: t[None].clone().requires_grad_() for n, t in model.items()}
        tuning = LoraFedAvg().tuning(task, leaves)
        loss = _loss(task, target.candidates, number, tuning).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        by_hand = sum(float(g.double().square().sum()) for g in gradients) ** 0.5
        one = target.candidates.pick(torch.tensor([number]))
        found = _norms(case.adversary, target.reconstructed.model, one)
        np.testing.assert_allclose(found, [by_hand], rtol=2e-4)


def test_neighbours_fit_best_in_the_frozen_model() -> None:
    """Against a loop over all places and words, one record at a time."""
    task, count = toy_writing_task(), 4
    records = toy_dialogues(5, seed=3)
    assert records.words is not None
    assert records.tokens is not None
    texts = with_neighbours(task, records, count)
    assert texts.words is not None
    ids = texts.words.ids.view(5, 1 + count, -1)
    for row in range(5):
        words, own = records.words[row : row + 1], ids[row, 0]
        picture = records.tokens[torch.tensor([row])].read()[None]
        p = task.language.logits(picture, words.repeated(1), Tuning())[0, 0].softmax(-1)
        answer = (words.kinds[0] == ANSWER).nonzero().flatten()
        fits = {
            (int(at), word): float(p[at - 1, word] / (1 - p[at - 1, own[at]]))
            for at in answer[:-1]
            for word in range(task.language.vocabulary)
            if word not in (int(own[at]), END)
        }
        best = sorted(fits, key=lambda pair: -fits[pair])[:count]
        for neighbour, (at, word) in zip(ids[row, 1:], best, strict=True):
            assert neighbour[at] == word
            assert (neighbour != own).sum() == 1
    kinds = texts.words.kinds.view(5, 1 + count, -1)
    assert (kinds == kinds[:, :1]).all()
    assert (kinds[..., -1] == PADDING).any()


def test_a_text_without_an_answer_has_a_loss_of_nothing() -> None:
    records = toy_dialogues(3, 50)
    assert records.words is not None
    kinds = records.words.kinds.clone()
    kinds[0] = torch.where(kinds[0] == ANSWER, PADDING, kinds[0])
    changed = replace(records, words=replace(records.words, kinds=kinds))
    losses = _losses(toy_writing_task(), Tuning(), changed)
    assert losses[0] == 0
    assert (losses[1:] > 0).all()
