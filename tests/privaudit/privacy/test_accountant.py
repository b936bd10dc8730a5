import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.privacy import accountant
from privaudit.privacy.accountant import (
    Accountant,
    SamplingPhase,
    epsilon_of,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    noise_multiplier_for,
    tightest_epsilon,
)
from tests.golden import golden

DELTA = 1e-5


def columns(*names: str) -> list[tuple[float, ...]]:
    stored = golden("dp")
    return list(zip(*(stored[name].tolist() for name in names), strict=True))


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("accountant", "every", "close"),
    [
        ("opacus-rdp", 4, 1e-6),
        ("opacus-prv", 8, 1e-3),
        ("dpa-rdp", 4, 1e-6),
        ("dpa-pld", 8, 1e-3),
    ],
)
def test_accountants_give_their_reference_values(
    accountant: Accountant, every: int, close: float, rest: bool
) -> None:
    """Values of opacus 1.6.0 and dp-accounting 0.6.0: every so many rows, or the rest."""
    rows = columns(
        "q", "sigma", "steps", "delta", f"eps_{accountant.replace('-', '_')}"
    )
    for number, (q, sigma, steps, delta, expected) in enumerate(rows):
        if bool(number % every) != rest:
            continue
        got = epsilon_of([SamplingPhase(sigma, q, int(steps))], delta, accountant)
        assert got == pytest.approx(expected, rel=close), (q, sigma, steps)


def test_phases_compose_to_the_reference_values() -> None:
    stored = golden("dp", "het_")
    rows = stored["q1_sigma1_steps1_q2_sigma2_steps2_delta"][4:5].tolist()
    expected = stored["eps_pld_rdp"][4:5].tolist()
    for (q1, s1, n1, q2, s2, n2, delta), (pld, rdp) in zip(rows, expected, strict=True):
        phases = [SamplingPhase(s1, q1, int(n1)), SamplingPhase(s2, q2, int(n2))]
        assert epsilon_of(phases, delta, "dpa-pld") == pytest.approx(pld, rel=1e-3)
        assert epsilon_of(phases, delta, "dpa-rdp") == pytest.approx(rdp, rel=1e-6)
        prv = epsilon_of(phases, delta, "opacus-prv")
        assert pld <= prv <= pld + 0.02


def test_closed_forms_of_the_gaussian_mechanism_are_the_reference_values() -> None:
    for mu, epsilon, delta in columns("gdp_mu", "gdp_eps", "gdp_delta"):
        assert gaussian_delta(mu, epsilon) == pytest.approx(delta, abs=1e-8)
    for epsilon, delta, sigma in columns("gauss_eps", "gauss_delta", "gauss_sigma"):
        assert gaussian_multiplier(epsilon, delta) == pytest.approx(sigma, rel=1e-8)
        assert gaussian_epsilon(1 / sigma, delta) == pytest.approx(epsilon, rel=1e-8)
    for row in columns("q", "sigma", "steps", "delta", "eps_exact"):
        if row[0] == 1:
            got = epsilon_of(
                [SamplingPhase(row[1], 1.0, int(row[2]))], row[3], "gaussian-exact"
            )
            assert got == pytest.approx(row[4], rel=1e-8)


@given(mu=st.floats(1e-3, 60), log_delta=st.floats(-30, -1))
@settings(max_examples=100, deadline=None)
def test_gaussian_epsilon_inverts_delta(mu: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon:
        assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    else:
        assert gaussian_delta(mu, 0.0) <= delta


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"),
    [(8.0, 0.3, 20), (1.0, 0.3, 20), (0.1, 0.3, 20), (2.0, 0.02, 200), (1.0, 1.0, 20)],
)
def test_calibrated_noise_costs_what_was_asked_for(
    epsilon: float, rate: float, steps: int
) -> None:
    """By opacus, and by dp-accounting, whose bound may not be above opacus'."""
    multiplier = noise_multiplier_for(epsilon, DELTA, rate, steps)
    spent, _ = tightest_epsilon([SamplingPhase(multiplier, rate, steps)], DELTA)
    other = epsilon_of([SamplingPhase(multiplier, rate, steps)], DELTA, "dpa-pld")
    assert 0.99 * epsilon <= spent <= epsilon
    assert 0.97 * epsilon <= other <= epsilon


@pytest.mark.parametrize("accountant", ["opacus-rdp", "opacus-prv", "dpa-rdp"])
def test_every_accountant_can_calibrate(accountant: Accountant) -> None:
    multiplier = noise_multiplier_for(4.0, DELTA, 0.2, 10, accountant)
    spent = epsilon_of([SamplingPhase(multiplier, 0.2, 10)], DELTA, accountant)
    assert 3.96 <= spent <= 4.0


def test_sampling_never_costs_more_than_none() -> None:
    for multiplier in (0.3, 1.0, 30.0):
        sampled, _ = tightest_epsilon([SamplingPhase(multiplier, 0.5, 10)], DELTA)
        assert sampled <= gaussian_epsilon(math.sqrt(10) / multiplier, DELTA)


def test_hardly_any_noise_is_accounted_for_quickly() -> None:
    epsilon, accountant = tightest_epsilon([SamplingPhase(0.01, 0.3, 20)], DELTA)
    assert epsilon > 1e4
    assert accountant in ("dpa-pld", "opacus-rdp", "gaussian-exact")
    for noise in (1e-3, 1e-4):
        assert tightest_epsilon([SamplingPhase(noise, 0.3, 20)], DELTA)[0] > epsilon


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("noise multiplier", (0.0, 0.5, 1)),
        ("noise multiplier", (math.nan, 0.5, 1)),
        ("sampling rate", (1.0, 0.0, 1)),
        ("sampling rate", (1.0, 1.1, 1)),
        ("steps", (1.0, 0.5, 0)),
    ],
)
def test_a_phase_outside_its_range_is_refused(
    name: str, values: tuple[float, float, int]
) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingPhase(*values)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(ConfigError, match=f"delta must be .*{delta:g}"):
        epsilon_of([SamplingPhase(1.0, 1.0, 1)], delta)
    with pytest.raises(ConfigError, match="delta"):
        noise_multiplier_for(1.0, delta, 0.5, 1)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf])
def test_an_epsilon_outside_its_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=f"epsilon must be above 0.*{epsilon:g}"):
        noise_multiplier_for(epsilon, DELTA, 0.5, 1)


def test_an_epsilon_that_an_accountant_cannot_prove_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"0.001 was requested.*proves none below 0.1"
    ):
        noise_multiplier_for(0.001, DELTA, 1.0, 10, "opacus-rdp")


def test_the_exact_accountant_knows_no_sampling() -> None:
    with pytest.raises(ConfigError, match=r"sampling rate of 0\.5"):
        epsilon_of([SamplingPhase(1.0, 0.5, 1)], DELTA, "gaussian-exact")


def test_nothing_to_account_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one phase"):
        epsilon_of([], DELTA)


@pytest.mark.parametrize(
    ("rate", "steps", "delta"), [(0.3, 20, DELTA), (0.05, 200, DELTA), (0.5, 50, 0.05)]
)
@pytest.mark.parametrize("epsilon", [20.0, 49.9, 50.0, 51.0, 60.0, 100.0])
def test_a_large_budget_is_spent_to_the_last_percent(
    epsilon: float, rate: float, steps: int, delta: float
) -> None:
    """Where the accountant changes, at 50, too; another one agrees to a percent."""
    noise = noise_multiplier_for(epsilon, delta, rate, steps)
    phase = SamplingPhase(noise, rate, steps)
    spent, accountant = tightest_epsilon([phase], delta)
    assert 0.99 * epsilon <= spent <= 0.999 * epsilon
    assert accountant in ("opacus-prv", "dpa-pld")
    other: Accountant = "opacus-prv" if accountant == "dpa-pld" else "dpa-pld"
    again = epsilon_of([phase], delta, other, 0.005 * epsilon)
    assert again == pytest.approx(spent, rel=0.01)


@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1), (0.999, 2000)])
def test_budgets_in_the_hundreds_are_calibrated_too(rate: float, steps: int) -> None:
    noise = noise_multiplier_for(300.0, DELTA, rate, steps)
    spent, _ = tightest_epsilon([SamplingPhase(noise, rate, steps)], DELTA)
    assert 297 <= spent <= 300


@pytest.mark.parametrize("mu", [30.0, 1e3, 1e6, 1e12, 1e15])
def test_a_huge_epsilon_is_given_without_overflow(mu: float) -> None:
    """A million-fold claim is no claim, and still a number."""
    found = gaussian_epsilon(mu, 1e-5)
    assert 1.0 < found / (mu**2 / 2) < 1.0 + 10 / mu
    assert (
        gaussian_delta(mu, found * (1 - 1e-6)) > 1e-5 > gaussian_delta(mu, 1.3 * found)
    )


def test_both_forms_of_the_gaussian_delta_agree_where_they_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = gaussian_delta(33.0, 500.0)
    monkeypatch.setattr(f"{gaussian_delta.__module__}._LARGE", 0.0)
    assert gaussian_delta(33.0, 500.0) == pytest.approx(one, rel=1e-9)


ALONE = """
from privaudit.privacy.accountant import *
phases = [SamplingPhase(1.0, 0.1, 40), SamplingPhase(2.0, 0.3, 7)]
print(*(epsilon_of(phases, 1e-5, f"opacus-{name}").hex() for name in ("prv", "rdp")))
print("opacus" in sys.modules, __import__("opacus").PrivacyEngine.__module__)
"""


def test_accountants_without_opacus_root_are_the_same_to_the_bit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And who imports opacus afterwards has it whole."""
    command = [sys.executable, "-c", f"import sys{ALONE}"]
    alone = subprocess.check_output(command, text=True)
    exec(f"import sys, opacus{ALONE}", {})
    assert alone.replace("False", "True") == capsys.readouterr().out
    assert "False" in alone


def test_a_multiplier_is_searched_once_a_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is found by equal arguments only, and searched again where it was damaged."""
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path))
    search, asked = noise_multiplier_for.__wrapped__, (4.0, DELTA, 0.2, 7)
    first = search(*asked)
    monkeypatch.setattr(accountant, "_search", lambda *_: 3.0)
    assert search(*asked) == first != 3.0
    assert search(4.0, DELTA, 0.2, 8) == 3.0
    for file in (tmp_path / "noise").iterdir():
        file.write_text("{")
    assert search(*asked) == 3.0
