"""Discrete Gaussian noise on a grid: exact draws, made of integers alone.

Floating-point noise leaves traces: only some floats can be the sum of a value and a
draw, so that the low bits of a release tell neighbouring values apart (Mironov, "On
significance of the least significant bits for differential privacy", CCS 2012). Here a
value is rounded to a multiple of a power of two, and the noise is an integer number of
such steps: what comes out is a multiple of the step, whatever went in.

Every comparison is one of integers, so equal words give equal noise on every machine.
How long a draw takes depends on the noise, never on the value.

Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy",
NeurIPS 2020 (what is drawn, and algorithm 1); Karney, "Sampling exactly from the normal
distribution", ACM TOMS 42 (2016), algorithm N (how it is put together).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float64, Int8, Int64, Shaped, UInt64

from privaudit.core.devices import here
from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.parameters import above_zero
from privaudit.core.seeds import Stream, last_below, remainders, without_late

FINE = 2**29
"""Least standard deviation in steps where nobody adds up what several parties noised.

Rounding a value to such a grid moves it by nothing to speak of. What is released may be
rounded to float32 afterwards: it is a function of the integers.
"""

SUMMED = 2**17
"""The same where parties' noises add up: float32 holds 2^24 steps exactly."""

EXACT = 2**23
"""Steps of the largest value, and of noise, for their sum to be exact in float32."""

LARGEST = 2**30  # of a standard deviation: its square, doubled, fits into 64 bits
AT_ONCE = 2**18  # candidates: bounds memory
ALONE = 2**12  # from here on, one stream after the other is faster

Rounding = Literal["nearest", "toward-zero"]


@runtime_checkable
class RandomWords(Protocol):
    """Where random bits come from."""

    def words(self, count: int) -> UInt64[np.ndarray, " count"]:
        """Return independent 64-bit words, all values equally likely."""

    def below(self, bound: int, count: int) -> Int64[np.ndarray, " count"]:
        """Return independent integers in [0, bound), all equally likely."""


@dataclass(frozen=True)
class Grid:
    """Multiples of a power of two, to which values are rounded and noise is drawn.

    Attributes:
        step: The power of two.
        scale: Standard deviation of the noise in steps.
        largest: Values are cut off at so many steps, which moves no two apart; None
            leaves them.

    Example:
        >>> grid = Grid.of(0.75, reach=4.0)
        >>> grid.step == 2.0**-18, grid.scale == 0.75 / 2.0**-18
        (True, True)
    """

    step: float
    scale: int
    largest: int | None = None

    @classmethod
    def of(cls, std: float, *, reach: float | None = None, step: float = 0.0) -> "Grid":
        """Return the grid for noise of a standard deviation, rounded up to a step.

        No value has a say in it.

        Args:
            std: Above 0.
            reach: None where no other party's noise is added to what is noised here.
                Else the largest magnitude that one value can have, 0 if nobody knows:
                values up to it, noise and all, are exact in float32, and so are sums of
                several parties in float64.
            step: A power of two, or 0: the grid is no finer.
        """
        above_zero("standard deviation of the noise", std)
        finest = _power_of_two(std) / (FINE if reach is None else SUMMED)
        if reach:
            finest = max(finest, 2 * _power_of_two(reach) / EXACT)
        step = max(finest, step)
        return cls(step, math.ceil(std / step), EXACT if reach else None)

    def noise(self, shape: Sequence[int], stream: Stream) -> Float64[Tensor, "..."]:
        """Return discrete Gaussian noise, multiples of the step."""
        return self.noises(shape, [stream])[0]

    def noises(
        self, shape: Sequence[int], streams: Sequence[Stream]
    ) -> Float64[Tensor, "streams ..."]:
        """Return what :meth:`noise` gives of each stream."""
        drawn = discrete_gaussians(math.prod(shape), self.scale, streams)
        noise = torch.from_numpy(drawn * self.step)
        return noise.reshape(len(streams), *shape).to(here())

    def add(
        self,
        values: Float[Tensor, "..."],
        noise: Float64[Tensor, "..."],
        rounding: Rounding = "nearest",
    ) -> Float[Tensor, "..."]:
        """Return values, rounded to the grid, plus noise, in the values' type.

        Args:
            values: Finite.
            noise: As :meth:`noises` draws it.
            rounding: To the nearest step, which moves neighbours apart by sqrt(d) steps
                more at most; or toward zero, which makes no value larger.
        """
        steps = values.double() / self.step
        steps = steps.round() if rounding == "nearest" else steps.trunc()
        if self.largest is not None:
            steps = steps.clamp(-self.largest, self.largest)
        return (steps * self.step + noise).to(values.dtype)


def _power_of_two(number: float) -> float:
    """Return the largest power of two that is not above the number."""
    return math.ldexp(0.5, math.frexp(number)[1])


def discrete_gaussian(
    count: int, scale: int, stream: Stream
) -> Int64[np.ndarray, " count"]:
    """Return integers y drawn with probability proportional to exp(-y^2 / 2 scale^2).

    Exactly so: |y| = k scale + j with j below scale, k drawn in proportion to
    exp(-k^2 / 2), j and the sign evenly; what comes is kept with the chance
    exp(-k j / scale - j^2 / 2 scale^2), and so altogether in proportion to
    exp(-(k scale + j)^2 / 2 scale^2). Minus zero is not kept. Seven of ten are.

    ``scale``, 1 to 2^30, is the standard deviation, to 2^-53 from 2 on; out of range it
    is a ConfigError. The stream's words decide all: the same give the same integers.
    """
    return discrete_gaussians(count, scale, [stream])[0]


def discrete_gaussians(
    count: int, scale: int, streams: Sequence[Stream]
) -> Int64[np.ndarray, "streams count"]:
    """Return what :func:`discrete_gaussian` draws from each of several streams.

    In less time: the integers are counted together, the words drawn as by each alone.
    """
    if not 1 <= scale <= LARGEST:
        raise ConfigError(
            f"Discrete Gaussian noise of {scale} steps was requested. It must have 1 "
            f"to {LARGEST}."
        )
    at_once = max(1, AT_ONCE // (2 * count + 1)) if count < ALONE else 1
    found = np.empty((len(streams), count), dtype=np.int64)
    for first in range(0, len(streams), at_once):
        some = slice(first, first + at_once)
        _fill(found[some], scale, streams[some])
    return found


def _fill(
    found: Int64[np.ndarray, "streams count"], scale: int, streams: Sequence[Stream]
) -> None:
    missing = np.full(len(streams), found.shape[1])
    while missing.any():
        tries = np.minimum(missing + missing // 2 + 16, AT_ONCE) * (missing > 0)
        together: RandomWords = streams[0]
        if len(streams) > 1:
            together = _Together(streams, np.repeat(np.arange(len(streams)), tries))
        places, drawn = _kept(int(tries.sum()), scale, together)
        ends = np.searchsorted(places, tries.cumsum())
        for number, part in enumerate(np.split(drawn, ends[:-1])):
            lacking = found[number, found.shape[1] - missing[number] :]
            lacking[: len(part)] = part[: len(lacking)]
            missing[number] = max(0, len(lacking) - len(part))


@dataclass(frozen=True)
class _Together:
    """Several streams as one, for numbers of which each belongs to one of them.

    Attributes:
        streams: Each is asked for its own numbers' words, as if it were alone.
        owner: Whose each number is: in order, so that words can stand in a row.
    """

    streams: Sequence[Stream]
    owner: Int64[np.ndarray, " numbers"]

    def of(self, places: Shaped[np.ndarray, " some"]) -> "_Together":
        """Return the streams of some of the numbers."""
        return _Together(self.streams, self.owner[places])

    def words(self, count: int) -> UInt64[np.ndarray, " count"]:
        return np.concatenate([np.empty(0, dtype=np.uint64), *self._words()])

    def below(self, bound: int, count: int) -> Int64[np.ndarray, " count"]:
        parts = list(self._words())
        words = np.concatenate([np.empty(0, dtype=np.uint64), *parts])
        if (words > last_below(bound)).any():
            asked = [s for s, n in zip(self.streams, self._counts, strict=True) if n]
            pairs = zip(parts, asked, strict=True)
            words = np.concatenate([without_late(w, bound, s) for w, s in pairs])
        return remainders(words, bound)

    @property
    def _counts(self) -> list[int]:
        return np.bincount(self.owner, minlength=len(self.streams)).tolist()

    def _words(self) -> Iterator[UInt64[np.ndarray, " some"]]:
        for stream, count in zip(self.streams, self._counts, strict=True):
            if count:
                yield stream.words(count)


def _of(stream: RandomWords, places: Shaped[np.ndarray, " some"]) -> RandomWords:
    """Return the stream that numbers at some positions, or of a mask, are drawn from."""
    return stream.of(places) if isinstance(stream, _Together) else stream


def _kept(
    tries: int, scale: int, stream: RandomWords
) -> tuple[Int64[np.ndarray, " some"], Int64[np.ndarray, " some"]]:
    """Return which of so many candidates are kept, and those."""
    whole = _half_normal(stream.words(tries), stream)
    drawn = stream.below(2 * scale, tries)
    negative, far = drawn >= scale, whole > 0
    rest = drawn - scale * negative
    possible = far | (drawn != scale)  # minus zero is not
    squares = (rest * rest)[possible]
    passed = np.zeros(tries, dtype=bool)
    passed[possible] = _happens(squares, 2 * scale**2, _of(stream, possible))
    each = np.flatnonzero(passed & far)
    each = np.repeat(each, whole[each])  # exp(-k j / scale) is k times exp(-j / scale)
    happens = _happens(rest[each], scale, _of(stream, each))
    passed[each[np.flatnonzero(~happens)]] = False
    kept, size = np.flatnonzero(passed), np.multiply(whole, scale, dtype=np.int64)
    size += rest
    size *= 1 - 2 * negative.view(np.int8)  # numpy chooses by a mask more slowly
    return kept, size[kept]


def _happens(
    numerators: Int64[np.ndarray, " n"], denominator: int, stream: RandomWords
) -> Bool[np.ndarray, " n"]:
    """Return True with the chance exp(-numerator / denominator) each.

    A run of events of the chances x, x/2, x/3, ... ends before the first, after the
    second and so on with the chance 1 - x + x^2/2 - ... = exp(-x). Numerators are 0 to
    the denominator, which is 1 to 2^63.

    Source: Canonne, Kamath and Steinke 2020, algorithm 1.
    """
    result = stream.below(denominator, len(numerators)) >= numerators
    running, length = np.flatnonzero(~result), 2
    while len(running):
        drawn = _of(stream, running).below(denominator, len(running))
        running = running[np.flatnonzero(drawn < numerators[running])]
        drawn = _of(stream, running).below(length, len(running))
        running = running[np.flatnonzero(drawn == 0)]
        result[running] ^= True
        length += 1
    return result


def _half_normal(
    words: UInt64[np.ndarray, " n"], stream: RandomWords
) -> Int8[np.ndarray, " n"]:
    """Return integers k >= 0 with probabilities in proportion to exp(-k^2 / 2).

    A word is the first 64 bits of a uniform number. It tells k unless they are those of
    a bound between two k (a chance of 2^-60): then more bits are drawn.
    """
    bounds = np.array(_bounds(64), dtype=np.uint64)
    values = (words > bounds[0]).astype(np.int8)
    rare = np.flatnonzero((words >= bounds[1]) | (words == bounds[0]))
    values[rare] = np.searchsorted(bounds, words[rare])
    for place in rare[np.flatnonzero(words[rare] == bounds[values[rare]])]:
        more = _of(stream, np.array([place]))
        values[place] = _with_more_bits(int(words[place]), more)
    return values


def _with_more_bits(word: int, stream: RandomWords) -> int:
    value, bits = word, 64
    while value in _bounds(bits):
        value, bits = value << 64 | int(stream.words(1)[0]), bits + 64
    return bisect_left(_bounds(bits), value)


@cache
def _bounds(bits: int) -> tuple[int, ...]:
    """Return the first ``bits`` bits of the chances of a k of at most 0, 1, 2, ...

    Up to the first that is all ones. By decimal arithmetic, which is the same on every
    machine; the 40 digits beyond those returned are guards.
    """
    with localcontext() as context:
        context.prec = bits // 3 + 40
        reach = 4 + math.isqrt(2 * context.prec * 3)  # exp(-k^2 / 2) is below the last
        weights = [(Decimal(-k * k) / 2).exp() for k in range(reach)]
        total, below, bounds = sum(weights), Decimal(0), []
        for weight in weights:
            below += weight
            bounds.append(min(int(below / total * 2**bits), 2**bits - 1))
            if bounds[-1] == 2**bits - 1:
                break
    return tuple(bounds)
