"""The largest value of a parameter that a test rejects, for many tests at once."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

HALVINGS = 44  # of a bracket below 20 leave 1e-12

Test = Callable[[Float[np.ndarray, " tests"]], Bool[np.ndarray, " tests"]]


def largest_rejected(
    rejects: Test, highest: Float[np.ndarray, " tests"]
) -> Float[np.ndarray, " tests"]:
    """Return the end of the rejected values, from below, and 0 where 0 is not rejected.

    Args:
        rejects: Whether each test rejects its value; all up to some value, none above.
        highest: At least 0; no value above is rejected.
    """
    low, high = np.zeros_like(highest), highest
    refuses_zero = rejects(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rejected = rejects(middle)
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return np.where(refuses_zero, low, 0.0)
