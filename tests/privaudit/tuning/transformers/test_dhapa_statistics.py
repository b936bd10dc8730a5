import math

import torch

from privaudit.core.seeds import Seeds
from privaudit.datasets.dialogues import ANSWER
from privaudit.federated.trainer import Cohort, Round, Task
from privaudit.models.interfaces import Tuning
from privaudit.tuning.transformers.dhapa_statistics import (
    as_batch,
    embeddings,
    entropies,
    held_out,
    part_of,
    total,
)
from tests.conftest import toy_records
from tests.toy_language import toy_dialogues, toy_writing_task


def at(index: int) -> Round:
    return Round(index, Seeds(0), ("a", "b"))


def cohort_of(*sizes: int) -> Cohort:
    names = [f"client-{number}" for number in range(len(sizes))]
    return Cohort.of(names, [toy_records(size, 3 + size) for size in sizes])


def test_a_fifth_is_held_out_and_something_always_is_left_to_train_on() -> None:
    cohort = cohort_of(10, 2, 1, 0, 23)
    found = held_out(cohort, at(0), 0.2)
    assert found.sum(dim=1).tolist() == [2, 1, 0, 0, 5]
    assert not (found & ~cohort.mask).any()
    assert held_out(cohort, at(0), 0.99).sum(dim=1).tolist() == [9, 1, 0, 0, 22]
    assert not held_out(cohort, at(0), 0.0).any()


def test_the_same_records_are_held_out_in_every_round_whoever_else_is_there() -> None:
    cohort = cohort_of(10, 12)
    first = held_out(cohort, at(0), 0.3)
    assert torch.equal(first, held_out(cohort, at(7), 0.3))
    alone = Cohort.of(["client-1"], [toy_records(12, 15)])
    assert torch.equal(held_out(alone, at(3), 0.3)[0], first[1, :12])


def test_a_part_holds_the_chosen_records_in_their_order() -> None:
    cohort = cohort_of(4, 3)
    chosen = torch.tensor([[True, False, True, True], [False, False, True, False]])
    found = part_of(cohort, chosen)
    assert found.mask.tolist() == [[True, True, True], [True, False, False]]
    assert torch.equal(found.features[0], cohort.features[0, [0, 2, 3]])
    assert torch.equal(found.features[1, 0], cohort.features[1, 2])
    assert part_of(cohort, torch.zeros_like(chosen)).mask.shape == (2, 1)


def test_classes_that_are_all_alike_have_the_logarithm_of_their_number(
    task: Task,
) -> None:
    batch = as_batch(toy_records(5), 2)
    flat = Tuning(weights={"layer.weight": torch.zeros(2, 12, 12)})
    found = entropies(task, flat, batch)
    torch.testing.assert_close(found, torch.full((2, 5), math.log(4)))


def test_an_entropy_is_that_of_the_probabilities(task: Task) -> None:
    records = toy_records(130)  # more than are asked at once
    batch = as_batch(records, 1)
    logits = task.classifier.tower.logits(batch.features, None, None, Tuning())
    p = logits.double().softmax(dim=-1)
    want = -(p * p.log()).sum(dim=-1).float()
    torch.testing.assert_close(entropies(task, Tuning(), batch), want)


def test_of_a_model_that_writes_it_is_the_mean_over_the_answers_tokens() -> None:
    task, records = toy_writing_task(), toy_dialogues(7)
    found = entropies(task, Tuning(), as_batch(records, 1))
    assert records.words is not None
    assert records.tokens is not None
    words = records.words.repeated(1)
    logits = task.language.logits(records.tokens[None].read(), words, Tuning())[0]
    p = logits.double().softmax(dim=-1)
    each = -(p * p.log()).sum(dim=-1)
    for row in range(7):
        ahead = (records.words.kinds[row, 1:] == ANSWER).nonzero().flatten()
        want = each[row, ahead].mean().float()
        torch.testing.assert_close(found[0, row], want)


def test_sums_leave_padding_out_and_long_features_are_cut() -> None:
    cohort = cohort_of(3, 1)
    batch = part_of(cohort, cohort.mask)
    sums = total({"f": embeddings(batch, within=None)}, batch.mask)
    torch.testing.assert_close(sums["f"][1], cohort.features[1, 0])
    halved = embeddings(batch, within=0.5)
    norms = halved.norm(dim=2)[batch.mask]
    torch.testing.assert_close(norms, torch.full_like(norms, 0.5))
    assert not halved[1, 1:].any()
