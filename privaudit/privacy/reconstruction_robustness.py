"""Reconstruction robustness: how often a record is reconstructed, at the most."""

import math
from collections.abc import Mapping
from typing import Any

from privaudit.privacy.certificate import is_repeatable

_CANDIDATES = (1_000, 1_000_000)


def reconstruction_bound(epsilon: float, delta: float, baseline: float) -> float:
    """Return the largest chance that a record can be reconstructed with; 1 says nothing.

    Whoever knows all other records and would guess this one with a chance of
    ``baseline`` beforehand succeeds afterwards with at most e^epsilon baseline + delta:
    success is an event, and what (epsilon, delta)-DP bounds are events. It holds for
    any notion of success, exact or near, that the baseline is stated for.

    Source: Balle, Cherubin and Hayes, "Reconstructing training data with informed
    adversaries", IEEE S&P 2022 (reconstruction robustness, ReRo).

    Args:
        epsilon: Certified for this adversary, at least 0.
        delta: In [0, 1).
        baseline: In (0, 1]: of 1,000 equally likely records, 0.001.

    Example:
        >>> round(reconstruction_bound(1.0, 1e-5, 0.001), 6)
        0.002728
    """
    if epsilon >= -math.log(baseline):
        return 1.0
    return min(1.0, math.exp(epsilon) * baseline + delta)


def reconstruction_bounds(certificate: Mapping[str, Any]) -> dict[str, float] | None:
    """Return a view's bounds for a small and a large set of equally likely candidates.

    By their number, as text: that is how they stand in audit.json. None where nothing
    is proved, or where the noise follows from a seed.

    Example:
        >>> reconstruction_bounds({"epsilon": 1.0, "delta": 1e-5, "unit": "record"})
        {'1000': 0.002728..., '1000000': 1.2718...e-05}
    """
    epsilon = certificate["epsilon"]
    if epsilon is None or is_repeatable(certificate):
        return None
    delta = certificate["delta"]
    return {str(n): reconstruction_bound(epsilon, delta, 1 / n) for n in _CANDIDATES}


def reconstruction_sentence(certificate: Mapping[str, Any]) -> str:
    """Say what a certificate allows; nothing where it allows everything by itself.

    Example:
        >>> reconstruction_sentence({"epsilon": 1.0, "delta": 1e-5, "unit": "record"})
        'one of 1,000 equally likely records is reconstructed with a chance of at most \
0.273 %, one of 1,000,000 of at most 0.00127 %'
    """
    bounds = reconstruction_bounds(certificate)
    if bounds is None:
        return ""
    few, many = (f"{100 * bound:.3g} %" for bound in bounds.values())
    return (
        f"one of {_CANDIDATES[0]:,} equally likely {certificate['unit']}s is "
        f"reconstructed with a chance of at most {few}, one of {_CANDIDATES[1]:,} of at "
        f"most {many}"
    )
