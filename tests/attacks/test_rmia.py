from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privaudit.attacks.rmia import GRID, Rmia, _Likelihoods, tune_a
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import Task
from privaudit.statistics.shadow_comparison import (
    dominated_shares,
    masked_mean,
    offline_mean,
)
from privaudit.trainers.coop import CoOp
from tests.conftest import noisy_candidates, toy_records, with_noise
from tests.golden import golden
from tests.toy_federation import CLIENTS, Play, auroc_of


def likelihoods(
    numbers: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The target's of both kinds of records, and the mean out of public ones."""
    target, columns = int(numbers["target_model"]), numbers["reference_columns"]
    population = numbers["population_signals"]
    own = numbers["signals"][:, target], population[:, target]
    return *own, population[:, columns].mean(axis=1)


def assert_within_a_step(found: np.ndarray, wanted: np.ndarray, steps: int) -> None:
    """Scores are multiples of 1 / steps: a tie may fall the other way by rounding."""
    assert np.abs(found - wanted).max() <= 1 / steps + 1e-12
    assert (np.abs(found - wanted) < 1e-12).mean() > 0.98


@pytest.mark.parametrize("case", [0, 1, 2])
def test_offline_scores_are_the_golden_ones(case: int) -> None:
    numbers = golden("rmia") | golden("rmia", f"c{case}_")
    target, public, mean_out = likelihoods(numbers)
    for turn, gamma in enumerate(numbers["gammas"]):
        for place, a in enumerate(numbers["offline_a"]):
            ratio = target / offline_mean(numbers["mean_out_x"], float(a))
            others = public / offline_mean(mean_out, float(a))
            found = dominated_shares(ratio, others, float(gamma))
            wanted = numbers["correct_scores_offline_gamma"][turn, place]
            assert_within_a_step(found, wanted, len(others))


@pytest.mark.parametrize("case", [0, 1, 2])
def test_online_scores_are_the_golden_ones(case: int) -> None:
    numbers = golden("rmia") | golden("rmia", f"c{case}_")
    target, public, mean_out = likelihoods(numbers)
    others = public / mean_out
    columns = numbers["reference_columns"]
    shadows = numbers["signals"][:, columns].T
    is_in = numbers["membership"][:, columns].T
    inside, outside = masked_mean(shadows, is_in), masked_mean(shadows, ~is_in)
    np.testing.assert_allclose(outside, numbers["mean_out_x"], rtol=1e-12)
    np.testing.assert_allclose(inside, numbers["mean_in_x"], rtol=1e-12)
    for turn, gamma in enumerate(numbers["gammas"]):
        found = dominated_shares(target / ((inside + outside) / 2), others, gamma)
        wanted = numbers["correct_scores_online_gamma"][turn]
        assert_within_a_step(found, wanted, len(others))


@given(
    arrays(float, st.integers(1, 30), elements=st.sampled_from([0.5, 1, 1.5, 2, 3])),
    arrays(float, st.integers(1, 30), elements=st.sampled_from([0.25, 0.5, 1, 2, 3])),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_one_sort_equals_the_table_of_all_pairs(
    asked: np.ndarray, others: np.ndarray, gamma: float
) -> None:
    pairs = (asked[:, None] > gamma * others[None, :]).mean(axis=1)
    np.testing.assert_allclose(dominated_shares(asked, others, gamma), pairs)


def test_a_million_pairs_need_no_table() -> None:
    rng = np.random.default_rng(0)
    asked, others = rng.random(200_000), rng.random(200_000)
    found = dominated_shares(asked, others, 1.0)  # a table would take 40 GB
    np.testing.assert_allclose(found, asked, atol=0.01)


def test_at_a_of_one_the_guess_is_the_mean_out() -> None:
    mean = np.array([0.2, 0.9])
    np.testing.assert_array_equal(offline_mean(mean, 1.0), mean)
    np.testing.assert_allclose(offline_mean(mean, 0.0), [0.6, 0.95])


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_models_that_differ_by_rounding_tie(mode: Literal["online", "offline"]) -> None:
    """As an untrained model and its shadows do, by other digits on each machine."""
    rng = np.random.default_rng(0)
    known = rng.uniform(0.01, 0.99, size=50)
    is_in = rng.random((6, 50)) < 0.5

    def rounded(*shape: int) -> np.ndarray:
        return known * (1 + 1e-5 * rng.uniform(-1, 1, size=(*shape, 50)))

    models = _Likelihoods(rounded(), rounded(6), is_in, ~is_in)
    for ratios in Rmia(mode=mode)._ratios(models, models, 1.0):
        assert set(ratios) == {1.0}


def test_a_is_tuned_on_shadows_alone() -> None:
    rng = np.random.default_rng(0)
    is_in = rng.random((12, 100)) < 0.5
    shadows = np.clip(0.4 + 0.3 * is_in + 0.1 * rng.normal(size=(12, 100)), 0.01, 0.99)
    one = _Likelihoods(np.full(100, 0.5), shadows, is_in, ~is_in)
    other = _Likelihoods(rng.random(100), shadows, is_in, ~is_in)
    assert tune_a(one, 2.0) == tune_a(other, 2.0)
    assert tune_a(one, 2.0) in GRID


def test_a_is_tuned_on_the_records_that_shadows_may_hold() -> None:
    """Easy records that no shadow is trained on must not look like non-members."""
    rng = np.random.default_rng(1)
    is_in = rng.random((12, 80)) < 0.5
    level = np.clip(0.5 + 0.35 * is_in + 0.05 * rng.normal(size=(12, 80)), 0.01, 0.99)
    pool = _Likelihoods(np.full(80, 0.5), level, is_in, ~is_in)
    never = np.zeros((12, 80), bool)
    easy = np.concatenate([level, np.full((12, 80), 0.99)], axis=1)
    mixed = _Likelihoods(
        np.full(160, 0.5), easy, np.hstack([is_in, never]), np.hstack([~is_in, ~never])
    )
    assert tune_a(pool, 1.0) != tune_a(mixed, 1.0)


@pytest.mark.parametrize("shadows", [1, 2])
def test_one_reference_model_is_enough_offline(
    play: Play, task: Task, shadows: int
) -> None:
    """Prompts that memorised noise; nothing is left to tune a with."""
    asked = noisy_candidates(CLIENTS, 40, 90)
    coin = torch.arange(40) % 2 == 0
    trainer = CoOp(learning_rate=0.2, epochs=40, batch_size=0, momentum=0.9)
    reference = replace(task, public=with_noise(toy_records(160, seed=1), 99))
    shards = {client: records.pick(coin) for client, records in asked.items()}
    played = play(trainer, shards=shards, task=reference)
    adversary, targets = played.watched("released", asked)
    scores = Rmia(shadows=shadows, mode="offline")(adversary, targets)
    assert auroc_of(scores, [coin.numpy()] * len(scores)).low > 0.55
    if shadows == 1:
        with pytest.raises(AttackError, match="rmia:shadows=1,mode=offline"):
            Rmia(shadows=1)(adversary, targets)
