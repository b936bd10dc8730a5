"""Time of the statistics that every audit makes, on large audits.

Run by ``make bench``. AUROC with DeLong's interval on 500,000 + 500,000 scores, and on
as many that are tied; and the stratified bootstrap of an AUROC against scikit-learn's
``roc_auc_score`` on one resample after another, in one process. Both draw as many
resamples; scikit-learn's time on fewer is scaled up where it would take minutes.
"""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from privaudit.statistics.roc import auroc
from privaudit_tools.benchmarks.measuring import machine, spread, timed
from privaudit_tools.selftest.bootstrap import Resampling, bootstrap_auroc

PASSES, SCORES, SECONDS = 5, 500_000, 1.0
REPLICATES, RATIO = 1000, 5


@pytest.mark.parametrize("levels", [None, 1000])
def test_auroc_of_a_million_scores(levels: int | None) -> None:
    header, rng = machine(), np.random.default_rng(0)
    members, others = draw(rng, SCORES, levels)
    seconds = [timed(partial(auroc, members, others)).seconds for _ in range(PASSES)]
    kind = "no ties" if levels is None else f"{levels} levels"
    met = "reached" if max(seconds) < SECONDS else "not reached"
    print(
        f"\n{header}\nAUROC and DeLong, {SCORES:,} + {SCORES:,} scores, {kind}: "
        f"{spread(seconds)} s; target below {SECONDS:g} s: {met}"
    )
    assert auroc(members, others).value == pytest.approx(
        roc_auc_score(np.repeat([1, 0], SCORES), np.concatenate([members, others])),
        abs=1e-12,
    )


@pytest.mark.parametrize("size", [100, 1000, 10_000, 100_000])
def test_bootstrap_against_a_loop(size: int) -> None:
    header, rng = machine(), np.random.default_rng(0)
    members, others = draw(rng, size, None)
    looped = min(REPLICATES, 4_000_000 // size)
    rows = []
    for _ in range(PASSES):
        fast = timed(
            partial(bootstrap_auroc, members, others, rng, replicates=REPLICATES)
        )
        slow = timed(partial(loop, members, others, rng, looped))
        rows.append((fast.seconds, slow.seconds * REPLICATES / looped))
    ratios = [slow / fast for fast, slow in rows]
    met = "reached" if min(ratios) >= RATIO else "not reached"
    held = peak(members, others, rng) / 2**20
    print(
        f"\n{header}\n{REPLICATES} stratified resamples of {size:,} + {size:,} scores: "
        f"{spread([fast for fast, _ in rows])} s, loop over roc_auc_score "
        f"{spread([slow for _, slow in rows])} s, {spread(ratios)} times as long; "
        f"target {RATIO}: {met}; peak memory {held:.1f} MiB"
    )
    assert_equal(members, others, rng)


def draw(
    rng: np.random.Generator, size: int, levels: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores of a weak attack, tied where there are levels."""
    if levels is None:
        return rng.normal(size=size) + 0.2, rng.normal(size=size)
    drawn = rng.integers(levels, size=(2, size)).astype(float)
    return drawn[0] + 20, drawn[1]


def loop(
    members: np.ndarray, others: np.ndarray, rng: np.random.Generator, replicates: int
) -> list[float]:
    """Resample and ask scikit-learn, again and again."""
    truth, found = np.repeat([1, 0], [len(members), len(others)]), []
    for _ in range(replicates):
        drawn = [
            part[rng.integers(len(part), size=len(part))] for part in (members, others)
        ]
        found.append(float(roc_auc_score(truth, np.concatenate(drawn))))
    return found


def peak(members: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> int:
    """Return the bytes that the bootstrap held at most."""
    tracemalloc.start()
    bootstrap_auroc(members, others, rng, replicates=REPLICATES)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held


def assert_equal(
    members: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> None:
    """Compare a replicate with scikit-learn's figure for the same counts."""
    resampling = Resampling.of(members, others)
    counts = next(iter(resampling.draws(rng, 2)))
    ours = resampling.aurocs(*counts)[0]
    drawn = [
        np.repeat(part, times[0])
        for part, times in zip(
            (resampling.members, resampling.others), counts, strict=True
        )
    ]
    truth = np.repeat([1, 0], [len(members), len(others)])
    theirs = roc_auc_score(truth, np.concatenate(drawn))
    assert ours == pytest.approx(theirs, abs=1e-12)
