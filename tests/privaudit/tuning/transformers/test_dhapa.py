import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.datasets.records import ANSWER
from privaudit.federation.trainer import Cohort, Round, Task
from privaudit.models.interfaces import Tuning
from privaudit.tuning.transformers.dhapa import (
    as_batch,
    client_weights,
    embeddings,
    entropies,
    find_centres,
    first_best,
    gaps_to_mean,
    held_out,
    nearest_centre,
    normalized,
    part_of,
    shares_in_groups,
    total,
)
from tests.conftest import toy_records
from tests.toy_language import toy_dialogues, toy_writing_task

NUMBERS = st.floats(0, 5, allow_nan=False).map(lambda x: round(x, 3))
FACTORS = st.sampled_from([0.0, 0.5, 1.0, 3.0])


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_three_clients_weigh_as_by_hand() -> None:
    """softmax(0, 0, log 2) = 1/4, 1/4, 1/2; gaps 1, 2, 5 give 1, 3/4, 0; and so on."""
    u, g, dp = double(0, 0, math.log(2)), double(1, 2, 5), double(-1, 0, 1)
    found = client_weights(u, g, dp, alpha=2.0, beta=1.0, gamma=4.0)
    raw = double(0.5 + 1 + 0, 0.5 + 0.75 + 2, 1 + 0 + 4)
    torch.testing.assert_close(found, raw / raw.sum())


def test_gaps_are_to_the_plain_mean_of_clients() -> None:
    found = gaps_to_mean(torch.tensor([[0.0, 0], [3, 4], [-3, -4]]))
    torch.testing.assert_close(found, torch.tensor([0.0, 5.0, 5.0]))


def test_equal_values_are_no_reason_to_divide_by_zero() -> None:
    assert normalized(double(0.3, 0.3, 0.3)).tolist() == [0, 0, 0]
    assert normalized(double(7)).tolist() == [0]
    rounded = torch.tensor([1.0, 1.0 + 1e-7])  # no difference in what was sent
    assert normalized(rounded).tolist() == [0, 0]


def test_where_all_weights_are_zero_all_count_alike() -> None:
    nothing = double(0, 0, 0)
    found = client_weights(nothing, nothing, nothing, alpha=0.0, beta=0.0, gamma=1.0)
    torch.testing.assert_close(found, torch.full_like(found, 1 / 3))


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=6),
    FACTORS,
    FACTORS,
    FACTORS,
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_weights_sum_to_one_and_follow_their_clients(
    clients: list[tuple[float, float, float]],
    alpha: float,
    beta: float,
    gamma: float,
    random: Random,
) -> None:
    statistics = torch.tensor(clients, dtype=torch.float64).T
    order = list(range(len(clients)))
    random.shuffle(order)
    found = client_weights(*statistics, alpha=alpha, beta=beta, gamma=gamma)
    mixed = client_weights(*statistics[:, order], alpha=alpha, beta=beta, gamma=gamma)
    assert float(found.sum()) == pytest.approx(1)
    assert bool((found >= 0).all())
    torch.testing.assert_close(mixed, found[order])


def test_inside_a_group_weights_are_shared_out_anew() -> None:
    """Nobody is in the second group, and nobody in the third has a weight."""
    weights, groups = double(0.1, 0.3, 0, 0), torch.tensor([0, 0, 2, 2])
    found = shares_in_groups(weights, groups, 3)
    want = torch.tensor([[0.25, 0.75, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0.5]])
    torch.testing.assert_close(found, want.double())


def test_the_first_of_equal_choices_is_taken() -> None:
    scores = torch.tensor([[1.0, 0, 2], [1, 5, 2], [0, 5, 2]])
    assert first_best(scores).tolist() == [0, 1, 0]
    centres = torch.tensor([[0.0, 1], [0, 1], [5, 5]])
    assert nearest_centre(torch.tensor([[0.0, 0], [5, 4]]), centres).tolist() == [0, 2]


def groups_of_points() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0], [9, 0], [0, 9]]).repeat_interleave(4, dim=0)
    return centres + torch.randn(12, 2, generator=generator)


def test_clusters_found_again_keep_their_numbers() -> None:
    points = groups_of_points()
    first = find_centres(points, 3, None, seed=3)
    assert first is not None
    again = find_centres(points, 3, None, seed=3)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    labels = nearest_centre(points, first)
    assert [len(part.unique()) for part in labels.split(4)] == [1, 1, 1]
    assert len(labels.unique()) == 3
    fewer = find_centres(points[[1, 2, 6, 9, 10]], 3, first, seed=3)
    assert fewer is not None
    assert torch.equal(nearest_centre(points, fewer), labels)


def test_too_few_points_for_the_clusters_leave_the_centres_as_they_were() -> None:
    points, known = torch.tensor([[1.0, 2], [1, 2]]), torch.eye(2)
    assert find_centres(points, 2, None, seed=0) is None
    assert find_centres(points, 2, known, seed=0) is known


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
