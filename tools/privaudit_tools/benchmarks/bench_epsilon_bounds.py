"""Whether the epsilon bounds hold, what they show, and what scanning thresholds claims.

Run by ``make bench``; prints the tables of docs/epsilon-bounds.md. All of it is
simulation, seeded. It fails where a bound that may refute does not hold.
"""

from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import binom

from privaudit.statistics.epsilon.bound import EpsilonMethod
from privaudit.statistics.epsilon.many_runs import MultiSplit, epsilon_from_errors
from privaudit.statistics.epsilon.one_run import FDPOneRun, OneRunGuesses
from privaudit.statistics.estimate import Estimate, proportion
from privaudit_tools.selftest.calibration import (
    GaussianCanaries,
    RandomisedResponse,
    Silence,
    coverage,
    holds,
    simulated,
    standard_bounds,
)

AUDITS, REPEATS = 1000, 200
EPSILONS = (1.0, 4.0, 8.0)
GUESSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def measured(n: int, delta: float = 1e-5) -> Mapping[str, EpsilonMethod]:
    """Return the standard bounds, but of more splits than tests have time for."""
    split = MultiSplit(delta=delta, splits=11)
    return {**standard_bounds(n, delta), "MultiSplit": split}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2025)


def percent(share: Estimate) -> str:
    low, value, high = (100 * x for x in (share.low, share.value, share.high))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def test_ceilings() -> None:
    print("\n| bound | " + " | ".join(f"n = {n:,}" for n in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for name in measured(100):
        figures = [
            " / ".join(
                f"{measured(n, delta)[name].ceiling(n // 2, n // 2):.2f}"
                for delta in (1e-12, 1e-5)
            )
            for n in SIZES
        ]
        print(f"| `{name}` | " + " | ".join(figures) + " |")


SIZES = (100, 200, 1000, 10_000)


def test_false_claims_without_a_leak(rng: np.random.Generator) -> None:
    print("\n| bound | n = 200 | n = 1,000 |\n|---|---|---|")
    for name in measured(200):
        shares = [
            coverage(measured(n)[name], Silence(), n, AUDITS, rng) for n in (200, 1000)
        ]
        print(f"| `{name}` | " + " | ".join(map(percent, shares)) + " |")
        assert all(holds(share, 0.05) for share in shares), name


def test_bounds_beyond_the_truth(rng: np.random.Generator) -> None:
    mechanisms = [
        kind(epsilon)
        for kind in (GaussianCanaries, RandomisedResponse)
        for epsilon in EPSILONS
    ]
    print("\n| bound | " + " | ".join(f"{e:g}" for e in EPSILONS * 2) + " |")
    print("|---" * 7 + "|")
    for name, bound in measured(1000).items():
        shares = [coverage(bound, m, 1000, AUDITS, rng) for m in mechanisms]
        print(f"| `{name}` | " + " | ".join(map(percent, shares)) + " |")
        assert not bound.can_refute or all(holds(s, 0.05) for s in shares), name


def recovered(
    bound: EpsilonMethod, mechanism: GaussianCanaries, n: int, rng: np.random.Generator
) -> tuple[float, str]:
    """Return the median of the bounds, and the same with their 5 and 95 %."""
    values = simulated(bound, mechanism, n, REPEATS, rng)
    low, median, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return median, f"{median:.2f} [{low:.2f}, {high:.2f}]"


def test_what_is_recovered_of_epsilon(rng: np.random.Generator) -> None:
    settings = [(n, epsilon) for n in (1000, 10_000) for epsilon in EPSILONS]
    print("\n| bound | " + " | ".join(f"{n:,}: {e:g}" for n, e in settings) + " |")
    print("|---" * 7 + "|")
    for name in measured(1000):
        cells = []
        for n, epsilon in settings:
            mechanism, bound = GaussianCanaries(epsilon), measured(n)[name]
            median, found = recovered(bound, mechanism, n, rng)
            cells.append(f"{found} {100 * median / epsilon:.0f} %")
        print(f"| `{name}` | " + " | ".join(cells) + " |")


def test_how_many_guesses_show_most(rng: np.random.Generator) -> None:
    header = " | ".join(f"{100 * share:g} %" for share in GUESSES)
    print(
        f"\n| canaries | epsilon | {header} |\n|---|---" + "|---" * len(GUESSES) + "|"
    )
    for n in (100, 1000, 10_000):
        for epsilon in EPSILONS:
            cells = []
            for share in GUESSES:
                side = max(1, round(n * share / 2))
                bound = OneRunGuesses(guesses_in=side, guesses_out=side, delta=1e-5)
                mechanism = GaussianCanaries(epsilon)
                cells.append(recovered(bound, mechanism, n, rng)[1])
            print(f"| {n:,} | {epsilon:g} | " + " | ".join(cells) + " |")


def test_what_scanning_claims_on_noise(rng: np.random.Generator) -> None:
    """Not ours: what is claimed where the best threshold is kept, without a leak."""
    print("\n| practice | n = 200 | n = 1,000 |\n|---|---|---|")
    rows: dict[str, list[str]] = {}
    for n in (200, 1000):
        is_member = rng.random((AUDITS, n)) < 0.5
        scores = Silence().score(is_member, rng)
        for name, claims in scanned(scores, is_member).items():
            share = proportion(int(claims.sum()), AUDITS)
            rows.setdefault(name, []).append(percent(share))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


def scanned(scores: np.ndarray, is_member: np.ndarray) -> dict[str, np.ndarray]:
    """Return which audits claim an epsilon above 0, by ways of keeping the best."""
    order = np.argsort(-scores, axis=1)
    truth = np.take_along_axis(is_member, order, axis=1)
    hits, alarms = truth.cumsum(1), (~truth).cumsum(1)
    counts = hits[:, -1], alarms[:, -1]
    halves = epsilon_from_errors(
        counts[0][:, None] - hits, alarms, *counts, significance=0.05, delta=0.0
    )
    whole = epsilon_from_errors(
        counts[0][:, None] - hits, alarms, *counts, significance=0.1, delta=0.0
    )
    both, each = zip(*(best_guesses(row) for row in truth), strict=True)
    return {
        "Clopper-Pearson, 2.5 % for either rate, best threshold": halves.max(1) > 0,
        "Clopper-Pearson, 5 % for either rate, best threshold": whole.max(1) > 0,
        "one-run, best number of guesses, as many in as out": np.array(both),
        "one-run, best numbers of guesses in and out": np.array(each),
    }


def best_guesses(truth: np.ndarray) -> tuple[bool, bool]:
    """Return whether some number of guesses, or some pair, is significant at 5 %."""
    n, half = len(truth), len(truth) // 2
    enough = np.asarray(binom.isf(0.05, np.arange(n + 1), 0.5)) + 1  # so many right
    right_in = np.concatenate([[0], truth[:half].cumsum()])
    right_out = np.concatenate([[0], (~truth[::-1])[:half].cumsum()])
    sides = np.arange(half + 1)
    guesses = sides[:, None] + sides
    claims = right_in[:, None] + right_out >= enough[guesses]
    claims[0, 0] = False
    return bool(claims.diagonal().any()), bool(claims.any())


def test_epsilon_8_where_it_is_in_reach(rng: np.random.Generator) -> None:
    """At n = 1,000 no bound's ceiling is 8: coverage there says nothing."""
    print("\n| bound | n | ceiling | beyond epsilon = 8, % |\n|---|---|---|---|")
    most = {"guesses_in": 9_000, "guesses_out": 9_000}
    bounds: list[tuple[EpsilonMethod, int]] = [
        (standard_bounds(60_000, 1e-9)["SplitThreshold"], 60_000),
        (standard_bounds(60_000, 1e-9)["FixedGrid"], 60_000),
        (OneRunGuesses(**most), 20_000),
        (FDPOneRun(**most), 20_000),
    ]
    for bound, n in bounds:
        share = coverage(bound, RandomisedResponse(8.0), n, 200, rng)
        ceiling = bound.ceiling(n // 2, n // 2)
        print(
            f"| `{type(bound).__name__}` | {n:,} | {ceiling:.2f} | {percent(share)} |"
        )
        assert ceiling > 8
        assert holds(share, 0.05)


def test_both_designs_take_seconds(rng: np.random.Generator) -> None:
    """One audit of a million canaries: the p-value is linear in the guesses."""
    n = 1_000_000
    for bound in (
        OneRunGuesses(guesses_in=n // 10, guesses_out=n // 10, delta=1e-9),
        standard_bounds(n)["SplitThreshold"],
    ):
        assert simulated(bound, GaussianCanaries(1.0), n, 1, rng)[0] > 0
