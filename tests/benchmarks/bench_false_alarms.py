"""Whether intervals hold with ties and with unequal classes.

Run by ``make bench``; prints tables as those of docs/selftest.md, with its own draws.
"""

import numpy as np
import pytest

from privaudit.checks.selftest.false_alarms import (
    DISTRIBUTIONS,
    RATES,
    exact_rates,
    interval_of,
    named,
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
    """How many of 100 are called a leak, and how many intervals miss 0.5; exact."""
    print("\n| n | " + " | ".join(f"q = {rate:g}" for rate in RATES) + " |")
    print("|---" * (len(RATES) + 1) + "|")
    for sizes in SIZES:
        cells = [f"{100 * a:.1f} / {100 * b:.1f}" for a, b in exact_rates(sizes)]
        print(f"| {named(sizes)} | {' | '.join(cells)} |")


@pytest.mark.parametrize("auroc", [0.5, 0.9])
def test_thirteen_distributions(auroc: float) -> None:
    """How many of 100 intervals miss the true AUROC."""
    print(f"\n{auroc:g}, {TRIALS} trials\n")
    print("| | " + " | ".join(map(named, RATIOS)) + " |")
    print("|---" * (len(RATIOS) + 1) + "|")
    for row, (name, distribution) in enumerate(DISTRIBUTIONS.items()):
        shift, cells = shift_of(distribution, auroc), []
        for column, sizes in enumerate(RATIOS):
            rng = np.random.default_rng([0, row, column])
            found = [
                interval_of(distribution, sizes, shift, rng) for _ in range(TRIALS)
            ]
            cells.append(f"{100 * np.mean([e.excludes(auroc) for e in found]):.1f}")
        print(f"| {name} | {' | '.join(cells)} |")
