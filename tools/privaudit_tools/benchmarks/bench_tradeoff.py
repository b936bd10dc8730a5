"""False dominations and power of a sweep's front, over simulated sweeps.

Run by ``make bench``. Nothing is trained: a cell's leak and use on a seed are normal
around its mean with standard deviation 0.02 of its own, and 0.02 that all cells of the
seed share, so that paired differences have 0.028. Margins are 0.05, the level 5 %.
"""

import numpy as np
import pytest

from privaudit.statistics.dominance import Replicates, find_front
from privaudit.statistics.estimate import proportion

SPREAD, SWEEPS, SEEDS = 0.02, 1000, (3, 5, 10)
Means = list[tuple[float, float]]

NULLS: dict[str, Means] = {
    "6 cells without differences": [(0.55, 0.8)] * 6,
    "2 cells a margin apart in leak": [(0.55, 0.8), (0.60, 0.8)],
    "3 and 3 cells a margin apart in leak": [(0.55, 0.8)] * 3 + [(0.6, 0.8)] * 3,
    "1 cell leaks far more, for a margin of use": [(0.9, 0.8)] + [(0.5, 0.75)] * 2,
}


def draw(means: Means, rng: np.random.Generator, seeds: int) -> list[Replicates]:
    shared = rng.normal(0, SPREAD, (seeds, 2))
    return [
        {
            seed: (float(leak), float(use))
            for seed, (leak, use) in enumerate(
                np.array(mean) + shared + rng.normal(0, SPREAD, (seeds, 2))
            )
        }
        for mean in means
    ]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", NULLS)
def test_false_dominations(name: str, seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    fronts = [find_front(draw(NULLS[name], rng, seeds)) for _ in range(SWEEPS)]
    share = proportion(sum(bool(front.dominations) for front in fronts), SWEEPS)
    print(f"\n| {name} | {seeds} | {share} |")
    assert share.low <= 0.05


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("others", [1, 5])
@pytest.mark.parametrize("more", [0.1, 0.15, 0.2])
def test_power(more: float, others: int, seeds: int) -> None:
    """One cell leaks so much more than all others, which are alike."""
    rng = np.random.default_rng(seeds)
    means = [(0.55 + more, 0.8)] + [(0.55, 0.8)] * others
    fronts = [find_front(draw(means, rng, seeds)) for _ in range(SWEEPS // 5)]
    found = sum(0 not in front.not_dominated for front in fronts)
    print(
        f"\n| +{more:g} | {others + 1} | {seeds} | {proportion(found, len(fronts))} |"
    )
