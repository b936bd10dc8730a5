"""Guessable seeds: noise that a usual generator draws after a seed one would try."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

FIRST = 16
"""Numbers of a draw that tell its seed. Torch draws so many at once, and the last of a
number that is no multiple of it once more: of less than two such blocks all count."""
SEEDS = (*range(1024), 1234, 2020, *range(2021, 2031), 12345, 31337, 123456)


GENERATORS: dict[str, Callable[[int, int], np.ndarray]] = {
    "torch.manual_seed": lambda seed, size: torch.randn(
        size, generator=torch.Generator().manual_seed(seed), dtype=torch.float32
    ).numpy(),
    # Flower's
    "numpy.random.seed": lambda seed, size: np.random.RandomState(seed).standard_normal(
        size
    ),
    "numpy.random.default_rng": lambda seed, size: np.random.default_rng(
        seed
    ).standard_normal(size),
}
"""What a generator draws first after a seed: so many values."""


@lru_cache
def _draws(generator: str, size: int) -> np.ndarray:
    """Return what a generator draws after each seed, each of length 1."""
    count = FIRST if size == 2 * FIRST else size
    drawn = [GENERATORS[generator](seed, size)[:count] for seed in SEEDS]
    rows = np.array(drawn).astype(float)
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def find_seed(
    values: np.ndarray, level: float, rarity: Callable[[float, int], float]
) -> str:
    """Return the call after which a generator draws these values, but for their scale.

    Empty where none of the known ones does. Noise that comes second behind another draw
    is not found, nor is any other seed.

    Args:
        values: FIRST at least, as they were drawn, perhaps beside something else.
        level: Chance to name a seed for values that are normal and independent.
        rarity: From a cosine and a number of values to its p-value.
    """
    size = min(len(values), 2 * FIRST)
    first = values[: FIRST if size == 2 * FIRST else size]
    length = float(np.linalg.norm(first))
    if not length:
        return ""
    tried = len(GENERATORS) * len(SEEDS)
    for name in GENERATORS:
        cosines = _draws(name, size) @ (first / length)
        best = int(np.abs(cosines).argmax())
        if rarity(float(cosines[best]), len(first)) * tried < level:
            return f"{name}({SEEDS[best]})"
    return ""
