import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privaudit.core.seeds import Seeds
from privaudit.federated.trainer import Cohort, Records
from privaudit.tuning.prompts.feature_memory import (
    FILLED,
    KEYS,
    VALUES,
    choose_blend,
    empty_memory,
    fill_memory,
    recall,
)


@pytest.fixture
def cohort(shards: dict[str, Records]) -> Cohort:
    return Cohort.of(list(shards), list(shards.values()))


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
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


def test_an_empty_memory_recalls_nothing() -> None:
    memory = {name: t.unsqueeze(0) for name, t in empty_memory(5, 12).items()}
    got = recall(memory, torch.ones(1, 4, 12), torch.tensor([3.0]), 4)
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
