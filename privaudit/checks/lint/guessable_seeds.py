"""Guessable seeds: noise that a usual generator draws after a seed one would try."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float

FIRST = 16
"""Numbers of a draw that tell its seed. Torch draws so many at once, and the last of a
number that is no multiple of it once more: of less than two such blocks all count."""
SEEDS = (*range(1024), 1234, 2020, *range(2021, 2031), 12345, 31337, 123456)
Draws = Float[np.ndarray, "seeds FIRST"]


def _torch(size: int) -> Iterator[np.ndarray]:
    generator = torch.Generator()
    for seed in SEEDS:
        generator.manual_seed(seed)
        yield torch.randn(size, generator=generator, dtype=torch.float32).numpy()


def _numpy_legacy(size: int) -> Iterator[np.ndarray]:
    for seed in SEEDS:
        yield np.random.RandomState(seed).standard_normal(size)  # Flower's


def _numpy(size: int) -> Iterator[np.ndarray]:
    for seed in SEEDS:
        yield np.random.default_rng(seed).standard_normal(size)


GENERATORS: dict[str, Callable[[int], Iterator[np.ndarray]]] = {
    "torch.manual_seed": _torch,
    "numpy.random.seed": _numpy_legacy,
    "numpy.random.default_rng": _numpy,
}


@lru_cache
def _draws(generator: str, size: int) -> np.ndarray:
    """Return what a generator draws after each seed, each of length 1."""
    count = FIRST if size == 2 * FIRST else size
    rows = np.array(list(GENERATORS[generator](size)))[:, :count].astype(float)
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
