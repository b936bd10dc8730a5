"""What a certificate says about reconstructing a record: how often, at the most."""

import math

from privaudit.privacy.events import Unit

_CANDIDATES = (1_000, 1_000_000)


def reconstruction_bound(epsilon: float, delta: float, baseline: float) -> float:
    """Return the largest chance that a record can be reconstructed with.

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

    Returns:
        In (0, 1]; 1 says nothing.

    Example:
        >>> round(reconstruction_bound(1.0, 1e-5, 0.001), 6)
        0.002728
    """
    if epsilon >= -math.log(baseline):
        return 1.0
    return min(1.0, math.exp(epsilon) * baseline + delta)


def reconstruction_sentence(epsilon: float, delta: float, unit: Unit) -> str:
    """Say for a small and a large set of candidates what a certificate allows.

    Args:
        epsilon: As in :func:`reconstruction_bound`.
        delta: Likewise.
        unit: Of the certificate.

    Example:
        >>> reconstruction_sentence(1.0, 1e-5, "record")
        'one of 1,000 equally likely records: reconstructed with at most 0.273 %; one of \
1,000,000: 0.00127 %'
    """
    few, many = (
        f"{100 * bound:.3g} %" if bound < 1 else "any chance"
        for bound in (reconstruction_bound(epsilon, delta, 1 / n) for n in _CANDIDATES)
    )
    return (
        f"one of {_CANDIDATES[0]:,} equally likely {unit}s: reconstructed with at most "
        f"{few}; one of {_CANDIDATES[1]:,}: {many}"
    )
