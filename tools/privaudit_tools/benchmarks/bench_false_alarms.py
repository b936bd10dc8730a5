"""Whether intervals hold: with ties, with unequal classes, and by resampling.

Run by ``make bench``; prints the table of docs/compare.md on the bootstrap, and tables
as those of docs/selftest.md, with its own draws.
"""

import numpy as np
import pytest
from scipy.special import ndtri

from privaudit.statistics.roc import auroc
from privaudit_tools.selftest.bootstrap import bootstrap_auroc
from privaudit_tools.selftest.false_alarms import (
    DISTRIBUTIONS,
    RATES,
    exact_rates,
    interval_of,
    named,
    of_an_interval,
    shift_of,
)

TRIALS = 2000
SIZES = (
    *((10, 10), (20, 20), (50, 50), (100, 10), (10, 100), (200, 20), (60, 20)),
    *((200, 50), (300, 100), (100, 100), (266, 273)),
)
RATIOS = (
    *((20, 20), (266, 273), (20, 40), (60, 20), (50, 10), (10, 50)),
    *((100, 10), (10, 100), (200, 10), (10, 200)),
)


def test_scores_of_0_and_1() -> None:
    """How many of 100 intervals lie above 0.5, and how many miss it; exact."""
    print("\n| n | " + " | ".join(f"q = {rate:g}" for rate in RATES) + " |")
    print("|---" * (len(RATES) + 1) + "|")
    for sizes in SIZES:
        rates = 100 * exact_rates(sizes, of_an_interval)
        cells = [f"{above:.1f} / {missed:.1f}" for above, missed in rates]
        print(f"| {named(sizes)} | {' | '.join(cells)} |")


@pytest.mark.parametrize("truth", [0.5, 0.9])
def test_thirteen_distributions(truth: float) -> None:
    """How many of 100 intervals miss the true AUROC."""
    print(f"\n{truth:g}, {TRIALS} trials\n")
    print("| | " + " | ".join(map(named, RATIOS)) + " |")
    print("|---" * (len(RATIOS) + 1) + "|")
    for row, (name, distribution) in enumerate(DISTRIBUTIONS.items()):
        shift, cells = shift_of(distribution, truth), []
        for column, sizes in enumerate(RATIOS):
            rng = np.random.default_rng([0, row, column])
            found = [
                interval_of(distribution, sizes, shift, rng) for _ in range(TRIALS)
            ]
            cells.append(f"{100 * np.mean([e.excludes(truth) for e in found]):.1f}")
        print(f"| {name} | {' | '.join(cells)} |")


@pytest.mark.parametrize(
    ("truth", "size", "spread"),
    [(0.6, 100, 1), (0.9, 100, 1), (0.9, 30, 1), (0.99, 100, 3), (0.99, 400, 3)],
)
def test_coverage_of_resampling(truth: float, size: int, spread: int) -> None:
    """Which share of 1,000 intervals holds the true AUROC: DeLong, BCa, percentile."""
    rng = np.random.default_rng(0)
    shift, held = np.hypot(1, spread) * ndtri(truth), []
    for _ in range(1000):
        members, others = rng.normal(size=(2, size))
        scores = spread * members + shift, others
        found = (
            auroc(*scores),
            bootstrap_auroc(*scores, rng),
            bootstrap_auroc(*scores, rng, interval="percentile"),
        )
        held.append([not one.excludes(truth) for one in found])
    cells = " | ".join(f"{share:.3f}" for share in np.mean(held, axis=0))
    print(f"\n| {truth:g}, spread {spread} | {size} | {cells} |")
