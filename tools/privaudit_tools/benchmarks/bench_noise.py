"""Discrete Gaussian noise: numbers a second on one core, and what of that is the cipher.

Run by ``make bench``. The cipher's part is measured by drawing as many words again, in
pieces of the same lengths, of which nothing is made; the rest is the sampler: numpy's
passes that compare, divide and choose, and the product with the step.
"""

from functools import partial

import pytest

from privaudit.core.seeds import Stream
from privaudit.privacy.discrete_gaussian import Grid
from privaudit_tools.benchmarks.measuring import machine, spread, timed

NUMBERS, PASSES = 2_000_000, 7


class Noted(Stream):
    """A stream that notes how many words it is asked for, time after time."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.asked: list[int] = []

    def words(self, count: int):  # type: ignore[no-untyped-def]
        self.asked.append(count)
        return super().words(count)


@pytest.mark.parametrize(("std", "reach"), [(1.0, None), (1.0, 0.0)])
def test_noise(std: float, reach: float | None) -> None:
    grid = Grid.of(std, reach=reach)
    noted = Noted(bytes(32))
    grid.noise([NUMBERS], noted)  # and the first pass sets up memory
    rates, shares = [], []
    for number in range(PASSES):
        key = bytes([number + 1]) * 32
        stream, cipher = (Stream.of(key, name) for name in ("noise", "cipher"))
        whole = timed(partial(grid.noise, [NUMBERS], stream)).seconds
        alone = timed(lambda: [cipher.words(n) for n in noted.asked]).seconds  # noqa: B023
        rates.append(NUMBERS / whole / 1e6)
        shares.append(alone / whole)
    words = sum(noted.asked) / NUMBERS
    print(f"\n{machine()}\n{grid.scale} steps, {8 * words:.1f} bytes a number")
    print(f"million numbers a second: {spread(rates)}; cipher: {spread(shares)} of it")
