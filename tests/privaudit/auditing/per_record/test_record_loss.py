"""What single records lose, by models that trained on them and others that did not."""

import numpy as np
import pytest
from jaxtyping import Bool
from scipy.stats import false_discovery_control, nct

from privaudit.auditing.per_record.record_loss import RecordLosses, record_losses


def coins(
    models: int, records: int, rng: np.random.Generator
) -> Bool[np.ndarray, "models records"]:
    """Toss a coin for each pair of models and record, as shadow models do."""
    heads = rng.random((models // 2, records)) < 0.5
    return np.stack([heads, ~heads], axis=1).reshape(models, records)


@pytest.mark.parametrize("loss", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("models", [8, 32])
def test_intervals_cover_and_the_loss_is_unbiased(loss: float, models: int) -> None:
    rng = np.random.default_rng(1)
    is_in = coins(models, 4000, rng)
    deviation = rng.uniform(0.1, 10.0, 4000)  # each record's own
    signals = deviation * (rng.normal(size=is_in.shape) + loss * is_in)
    found = record_losses(signals, is_in, ~is_in)
    covered = ((found.low <= loss) & (loss <= found.high)).mean()
    assert covered == pytest.approx(0.95, abs=0.015)
    assert found.value.mean() == pytest.approx(loss, abs=0.03 + 0.01 * loss)


def test_an_interval_is_nearly_the_exact_one_of_a_noncentral_t() -> None:
    is_in = coins(16, 20, np.random.default_rng(2))
    signals = np.random.default_rng(3).normal(size=is_in.shape) + 1.5 * is_in
    found = record_losses(signals, is_in, ~is_in)
    error = np.sqrt(2 / 8)
    pivot = found.value / (1 - 3 / 55) / error
    for low, high, t in zip(found.low, found.high, pivot, strict=True):
        assert nct.sf(t, 14, low / error) == pytest.approx(0.025, abs=0.003)
        assert nct.cdf(t, 14, high / error) == pytest.approx(0.025, abs=0.003)


def test_records_are_exposed_where_they_are_and_nowhere_else() -> None:
    rng = np.random.default_rng(4)
    is_in, leaks = coins(32, 1000, rng), np.arange(1000) < 50
    signals = rng.normal(size=is_in.shape) + 4 * is_in * leaks
    exposed = record_losses(signals, is_in, ~is_in).exposed()
    assert exposed[leaks].all()
    assert exposed[~leaks].mean() < 0.01
    nobody = record_losses(rng.normal(size=is_in.shape), is_in, ~is_in)
    assert not nobody.exposed().any()


def test_heavy_tails_expose_nobody_in_more_audits_than_chance_allows() -> None:
    """In each of 200 audits without a leak any record found is false: 5 % may have one."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(200):
        is_in = coins(64, 540, rng)
        signals = rng.standard_t(5, size=is_in.shape)
        alarms += int(record_losses(signals, is_in, ~is_in).exposed().any())
    assert alarms <= 200 * 0.05 + 4 * np.sqrt(200 * 0.05 * 0.95)


def test_models_that_learn_nothing_show_nothing() -> None:
    is_in = coins(8, 5, np.random.default_rng(5))
    found = record_losses(np.full(is_in.shape, 2.0), is_in, ~is_in)
    np.testing.assert_array_equal(found.value, 0)
    assert (found.low < 0).all()
    assert not found.exposed().any()


def test_too_few_models_say_nothing() -> None:
    is_in = coins(4, 3, np.random.default_rng(6))
    found = record_losses(np.ones(is_in.shape), is_in, ~is_in)
    assert np.isnan(found.value).all()
    assert (found.p_value == 1).all()
    assert not record_losses(np.ones((4, 0)), is_in[:, :0], is_in[:, :0]).exposed().size


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_the_exposed_are_those_of_scipys_control(
    count: int, rate: float, rng: np.random.Generator
) -> None:
    for digits in (1, 2, 16):
        p_value = (rng.random(count) ** 3).round(digits)
        found = RecordLosses(*[p_value] * 4).exposed(rate)
        expected = false_discovery_control(p_value) <= rate if count else found
        np.testing.assert_array_equal(found, expected)
        assert found.shape == (count,)
