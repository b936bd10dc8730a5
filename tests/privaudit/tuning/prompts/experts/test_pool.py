from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.federated.trainer import Round, Task
from privaudit.tuning.prompts.experts.pool import (
    draw_experts,
    expert_features,
    into_pool,
    pool_of,
)


def at(index: int = 1, seed: int = 0) -> Round:
    return Round(index, Seeds(seed), ("a",))


def line(*places: float) -> dict[str, Tensor]:
    """Prompts of one number on a line, for clients a, b, c, ..."""
    names = "abcdefghij"
    return {names[i]: torch.full((1, 1), place) for i, place in enumerate(places)}


def places(experts: Tensor | None) -> list[float]:
    assert experts is not None
    return sorted(experts.flatten().tolist())


def test_the_nearest_others_are_chosen_by_hand() -> None:
    pool = line(0.0, 5.0, -1.0, 2.0, 9.0)
    assert places(draw_experts(pool, "a", at(), 2, "nearest")) == [-1.0, 2.0]
    assert places(draw_experts(pool, "e", at(), 2, "nearest")) == [2.0, 5.0]


def test_without_an_entry_or_others_there_are_no_experts() -> None:
    assert draw_experts(line(1.0, 2.0), "c", at(), 9, "nearest") is None
    assert draw_experts(line(1.0), "a", at(), 9, "all") is None
    assert draw_experts(line(1.0, 2.0), "a", at(), 0, "all") is None
    assert draw_experts({}, "a", at(), 9, "random") is None


def test_all_is_all_and_random_differs_by_round() -> None:
    pool = line(*map(float, range(10)))
    assert len(places(draw_experts(pool, "a", at(), 2, "all"))) == 9
    drawn = {
        tuple(places(draw_experts(pool, "a", at(i), 3, "random"))) for i in range(9)
    }
    assert len(drawn) > 3
    assert all(0.0 not in some for some in drawn)


@given(
    st.lists(st.floats(-9, 9), min_size=2, max_size=8, unique=True),
    st.integers(1, 9),
    st.integers(0, 20),
)
def test_the_order_tells_nothing_but_the_seed_does(
    values: list[float], count: int, seed: int
) -> None:
    """Who is where depends on the stream alone: the same places for other prompts."""
    pool = line(*values)
    experts = draw_experts(pool, "a", at(seed=seed), count, "nearest")
    assert experts is not None
    assert len(experts) == min(count, len(values) - 1)
    distances = (experts - pool["a"]).flatten().abs()
    order = distances.argsort(stable=True).argsort().tolist()
    further = {name: 2 * prompt for name, prompt in pool.items()}
    again = draw_experts(further, "a", at(seed=seed), count, "nearest")
    assert again is not None
    repeated = (again - further["a"]).flatten().abs().argsort(stable=True).argsort()
    assert repeated.tolist() == order


def test_every_order_comes_up() -> None:
    pool = line(0.0, 1.0, 2.0, 3.0)
    orders = set()
    for seed in range(60):
        experts = draw_experts(pool, "a", at(seed=seed), 3, "nearest")
        assert experts is not None
        orders.add(tuple(experts.flatten().tolist()))
    assert len(orders) == 6


def test_features_are_those_of_each_expert_by_itself(task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    experts = torch.randn(2, 3, 3, 5, generator=generator)
    experts[1, 0] = experts[0, 2]  # shared by two clients
    found = expert_features(task, experts)
    assert found.shape == (2, 4, 3, 12)
    for client in range(2):
        for expert in range(3):
            alone = task.prompts(experts[client, expert].unsqueeze(0))[0]
            torch.testing.assert_close(found[client, :, expert], alone)


def test_a_shared_expert_is_encoded_once(task: Task) -> None:
    asked = []

    class Counting:
        context_tokens, width = 3, 5

        def __call__(self, contexts: Tensor) -> Tensor:
            asked.append(len(contexts))
            return task.prompts(contexts)

    same = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    experts = same.expand(4, 6, 3, 5)
    expert_features(
        replace(task, backbone=replace(task.classifier, prompts=Counting())), experts
    )
    assert asked == [1]


def test_the_pool_is_part_of_the_server_s_state() -> None:
    pool = line(1.0, 2.0)
    state = {"context": torch.zeros(1, 1), **into_pool(pool)}
    assert set(state) == {"context", "pool/a", "pool/b"}
    assert {name: float(p) for name, p in pool_of(state).items()} == {"a": 1, "b": 2}
