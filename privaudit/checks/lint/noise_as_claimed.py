"""Is the noise that was added as large as claimed?"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, Severity, rule
from privaudit.checks.lint.residuals import (
    Residual,
    client_residuals,
    ratio_interval,
    server_residuals,
)
from privaudit.privacy.events import Release
from privaudit.statistics.comparisons import holm

BAND_LEVEL = 0.001
"""Chance that noise as claimed is called anything else, in a whole run."""


@rule
def noise_as_claimed(evidence: Evidence) -> Found:
    """Is the noise that was added within a chi-square band of the claim?"""
    groups: dict[Release, list[Residual]] = defaultdict(list)
    for residual in (*client_residuals(evidence), *server_residuals(evidence)):
        groups[residual.release].append(residual)
    yield from _missing(evidence, groups)
    tests = [(release, r) for release, rs in groups.items() for r in (*rs, pool(rs))]
    squares = np.array([(r.square, float(r.values)) for _, r in tests]).reshape(-1, 2)
    rejected = holm(two_sided(squares))
    wrong = defaultdict(list)
    for (release, residual), p_value in zip(tests, rejected, strict=True):
        if p_value < BAND_LEVEL:
            wrong[release].append(residual)
    for release, residuals in wrong.items():
        yield _judged(evidence, release, residuals, groups[release])
    yield from _repeated(evidence)


def two_sided(squares: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    """Return chi-square p-values: twice the smaller tail, at most 1.

    Rows hold a sum of squares over the claimed variance, and of how many values.

    Example:
        >>> two_sided(np.array([[100.0, 100.0], [25.0, 100.0]])).round(4)
        array([0.9624, 0.    ])
    """
    from scipy.stats import chi2

    below = chi2.cdf(squares[:, 0], squares[:, 1])
    above = chi2.sf(squares[:, 0], squares[:, 1])
    return np.minimum(2 * np.minimum(below, above), 1.0)


def pool(residuals: Sequence[Residual]) -> Residual:
    """Return independent draws as one."""
    return Residual(
        residuals[0].release,
        "all together",
        sum(residual.values for residual in residuals),
        math.fsum(residual.square for residual in residuals),
    )


def _judged(
    evidence: Evidence,
    release: Release,
    wrong: Sequence[Residual],
    drawn: Sequence[Residual],
) -> tuple[Severity, str, tuple[str, ...]]:
    """Say how much noise there is; of the draws that differ, too little counts more."""
    whole = pool(drawn)
    ratio = math.sqrt(whole.square / whole.values)
    low, high = ratio_interval(whole.square, whole.values, 0.05)
    least = min(wrong, key=lambda residual: residual.square / residual.values)
    severity: Severity = "error" if least.square < least.values else "warning"
    single = sum(residual.where != whole.where for residual in wrong)
    return (
        severity,
        f"The noise on the {release} release has {ratio:.3f} [{low:.3f}, {high:.3f}] "
        f"times the claimed standard deviation (n = {whole.values}); {single} of "
        f"{len(drawn)} draws are outside the chi-square band (two-sided, level "
        f"{BAND_LEVEL:g}, Holm over all draws and their sum; least: {least.where}, "
        f"{math.sqrt(least.square / least.values):.3f}).",
        evidence.setting("mode", "noise_at"),
    )


def _missing(evidence: Evidence, groups: dict[Release, list[Residual]]) -> Found:
    """Say where noise is claimed and none is to be seen."""
    claimed = Counter(e.release for _, e in evidence.events() if e.noise_multiplier > 0)
    noted = any(bool(notes) for _, _, notes in evidence.notes())
    for release, rounds in claimed.items():
        seen = len(
            {residual.where.split(",")[0] for residual in groups.get(release, ())}
        )
        if seen >= rounds:
            continue
        if noted:
            yield (
                "error",
                f"The {release} release claims noise in {rounds} rounds, and the run "
                f"shows some in {seen}.",
                evidence.setting("mode", "noise_at"),
            )
        else:
            yield (
                "warning",
                f"Whether the noise on the {release} release is as claimed cannot be "
                "determined: the run holds no owner's trace of it. Train again with this "
                "version, or let the trainer note its noise.",
            )


def _repeated(evidence: Evidence) -> Found:
    """Say where two draws are the same: their difference holds no noise."""
    squares = Counter(
        (drawn.release, drawn.square)
        for _, _, notes in evidence.notes()
        for drawn in notes.noise
        if drawn.square > 0
    )
    again = sum(count - 1 for count in squares.values())
    if again:
        yield (
            "error",
            f"{again} of {squares.total()} draws of noise repeat another one: whoever "
            "sees both subtracts it.",
            evidence.setting("mode", "noise_at"),
        )
