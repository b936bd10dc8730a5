"""False alarms and power of the gate, over simulated pairs of runs.

Run by ``make bench``. Nothing is trained: scores of two models on the same records are
drawn normal with equal spread and correlation 0.8, so that the first model's AUROC is
0.5 + difference and the second's 0.5. Utility is the same in truth: 540 test records,
85 % right, every tenth judged otherwise by the other model. The gate asks what it asks
by default (AUROC and utility, alpha 0.05). Beside it stands the raw gate that fails
where the AUROC is above 0.52, on the same scores.
"""

import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
from scipy.special import ndtri

from privaudit.checks.gate.checks import GateQuestion, judge, overall
from privaudit.statistics.comparisons import (
    paired_accuracy_difference,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, proportion
from privaudit.statistics.roc import auroc

PAIRS, CORRELATION, TESTS, RAW = 500, 0.8, 540, 0.52
SIZES, DIFFERENCES, MARGINS = (200, 500, 1000, 2000), (0.0, 0.05, 0.1), (0.05, 0.02)


def draw(
    rng: np.random.Generator, size: int, difference: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two models' scores of so many members and non-members, and the truth."""
    shared = rng.standard_normal(2 * size) * math.sqrt(CORRELATION)
    own = rng.standard_normal((2, 2 * size)) * math.sqrt(1 - CORRELATION)
    truth = np.arange(2 * size) < size
    apart = math.sqrt(2) * float(ndtri(0.5 + difference))
    return shared + own[0] + apart * truth, shared + own[1], truth


def auroc_at(
    scores: tuple[np.ndarray, np.ndarray, np.ndarray], confidence: float
) -> Estimate:
    return pooled_paired_auroc_difference([scores], confidence).estimate


def utility(rng: np.random.Generator) -> GateQuestion:
    """Return the question about a utility that did not change."""
    first = rng.random(TESTS) < 0.85
    moved = rng.random(TESTS) < 0.1
    second = np.where(moved, rng.random(TESTS) < 0.85, first)

    def at(confidence: float) -> Estimate:
        return paired_accuracy_difference(first, second, confidence).estimate

    return GateQuestion("utility", "utility", "utility_margin", 0.05, 0.0, 0.0, at)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_outcomes_of_simulated_pairs(size: int, difference: float) -> None:
    rng = np.random.default_rng([size, round(100 * difference)])
    counted: dict[float, Counter[str]] = {margin: Counter() for margin in MARGINS}
    raw = 0
    for _ in range(PAIRS):
        scores, use = draw(rng, size, difference), utility(rng)
        at = partial(auroc_at, scores)
        truth = scores[2]
        raw += auroc(scores[0][truth], scores[0][~truth]).value > RAW
        for margin in MARGINS:
            asked = GateQuestion("AUROC", "leak", "margin", margin, 0.0, 0.0, at)
            counted[margin][overall(judge([asked, use]))] += 1
    for margin, found in counted.items():
        rates = [found[kind] for kind in ("regression", "pass", "underpowered")]
        print(f"\n| {margin:g} | {difference:g} | {size} | {cells(*rates, raw)} |")
        if difference <= margin:  # a regression is a false alarm
            assert proportion(found["regression"], PAIRS, 0.999).low <= 0.05


def cells(*counts: int) -> str:
    shares = [proportion(int(count), PAIRS) for count in counts]
    return " | ".join(
        f"{100 * s.value:.1f} [{100 * s.low:.1f}, {100 * s.high:.1f}]" for s in shares
    )
