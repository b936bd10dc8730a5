import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare, kstest

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.privacy import discrete_gaussian as module
from privaudit.privacy.discrete_gaussian import (
    EXACT,
    FINE,
    LARGEST,
    SUMMED,
    Grid,
    discrete_gaussian,
    discrete_gaussians,
)

GOLDEN = "e0edecd44be327dd2bef"


def stream(name: str = "noise") -> Stream:
    return Stream.of(bytes(32), name)


def exact(scale: int, reach: int) -> np.ndarray:
    """Return the chances of -reach to reach, from the definition."""
    weights = np.exp(-(np.arange(-60 * scale, 60 * scale + 1) ** 2) / 2 / scale**2)
    return weights[60 * scale - reach : 60 * scale + reach + 1] / weights.sum()


@pytest.mark.parametrize("scale", [1, 2, 5, 40])
def test_draws_have_the_chances_of_the_definition(scale: int) -> None:
    """A true sample fails this once in a million."""
    count, reach = 200_000, math.ceil(3.5 * scale)
    drawn = discrete_gaussian(count, scale, stream())
    inside = drawn[np.abs(drawn) <= reach]
    found = np.bincount(inside + reach, minlength=2 * reach + 1)
    expected = count * exact(scale, reach)
    found = np.append(found, count - len(inside))
    expected = np.append(expected, count - expected.sum())
    assert chisquare(found, expected).pvalue > 1e-6


@pytest.mark.parametrize("scale", [SUMMED + 1, FINE + 1, LARGEST])
def test_large_scales_have_the_normal_distribution_between_steps(scale: int) -> None:
    drawn = discrete_gaussian(100_000, scale, stream()) / scale
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert drawn.std() == pytest.approx(1, abs=5 / math.sqrt(2 * len(drawn)))
    assert abs(drawn.mean()) < 5 / math.sqrt(len(drawn))
    assert len(np.unique(np.round(drawn * scale).astype(int) % 64)) == 64


class UndecidedError(Exception):
    """A script ended where one of these has to be chosen next."""


class Script:
    """Stands in for a stream: says what it was given, one integer at a time."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = iter(choices)

    def _next(self, chances: dict[int, Fraction]) -> int:
        for choice in self.choices:
            return choice
        raise UndecidedError(chances)

    def words(self, count: int) -> Any:
        ends = [0, *(bound + 1 for bound in module._bounds(64))]
        chances = {
            end - 1: Fraction(end - start, 2**64)
            for start, end in itertools.pairwise(ends)
            if end - start > 1
        }
        found = [self._next(chances) - 1 for _ in range(count)]  # no word is a bound
        return np.array(found, dtype=np.uint64)

    def below(self, bound: int, count: int) -> Any:
        chances = dict.fromkeys(range(bound), Fraction(1, bound))
        return np.array([self._next(chances) for _ in range(count)], dtype=np.int64)


def all_runs(
    run: Callable[[Any], Any], least: float
) -> tuple[list[tuple[Any, Fraction]], Fraction]:
    """Follow every choice of a run; return what came with what chance, and the rest."""
    done, rest = [], Fraction(0)
    waiting: list[tuple[tuple[Any, ...], Fraction]] = [((), Fraction(1))]
    while waiting:
        choices, chance = waiting.pop()
        try:
            done.append((run(Script(choices)), chance))
        except UndecidedError as branch:
            for choice, share in branch.args[0].items():
                if chance * share < least:
                    rest += chance * share
                else:
                    waiting.append(((*choices, choice), chance * share))
    return done, rest


@pytest.mark.parametrize(("above", "below"), [(0, 3), (1, 2), (3, 4), (1, 1)])
def test_all_runs_of_an_event_add_up_to_its_exponential(above: int, below: int) -> None:
    numerators = np.array([above])
    done, rest = all_runs(lambda s: module._happens(numerators, below, s)[0], 1e-6)
    happens = float(sum(chance for happened, chance in done if happened))
    assert happens <= math.exp(-above / below) <= happens + float(rest)
    assert rest < 5e-3


def test_all_runs_of_a_small_sampler_add_up_to_its_definition() -> None:
    """Scale 2: every integer comes in proportion to exp(-y^2 / 8), and no other way."""
    done, rest = all_runs(lambda s: tuple(module._kept(1, 2, s)[1]), 3e-6)
    found: Counter[int] = Counter()
    for kept, chance in done:
        found.update({int(y): float(chance) for y in kept})
    kept = (
        math.sqrt(2 * math.pi) * 2 / (4 * sum(math.exp(-k * k / 2) for k in range(9)))
    )
    weights = dict(zip(range(-5, 6), kept * exact(2, 5), strict=True))
    assert float(rest) < 0.02
    for y, weight in weights.items():
        assert found[y] <= weight + 1e-9
    assert sum(found.values()) + float(rest) > sum(weights.values())


def test_a_word_on_a_bound_is_settled_by_more_bits() -> None:
    class Twice:
        def __init__(self, *words: int) -> None:
            self.given = iter(words)

        def words(self, count: int) -> Any:
            return np.array([next(self.given) for _ in range(count)], dtype=np.uint64)

        def below(self, bound: int, count: int) -> Any:
            raise AssertionError

    for k in range(4):
        top = np.array([module._bounds(64)[k]], dtype=np.uint64)
        low = module._bounds(128)[k] - (int(top[0]) << 64)
        assert module._half_normal(top, Twice(low - 1))[0] == k
        assert module._half_normal(top, Twice(low + 1))[0] == k + 1
        assert module._half_normal(top, Twice(low, 2**64 - 1))[0] == k + 1
    last = np.array([2**64 - 1], dtype=np.uint64)
    assert module._half_normal(last, Twice(0))[0] >= len(module._bounds(64)) - 1


def test_the_chances_of_whole_standard_deviations_are_right_to_the_last_bit() -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(400):
        weights = [mpmath.exp(-mpmath.mpf(k * k) / 2) for k in range(60)]
        total = mpmath.fsum(weights)
        sums = list(itertools.accumulate(weights))
        for bits in (64, 128, 192):
            for bound, below in zip(module._bounds(bits)[:-1], sums, strict=False):
                assert bound == int(mpmath.floor(below / total * 2**bits))


def test_equal_words_give_equal_noise_on_every_machine() -> None:
    """The digest was computed on one machine; nothing but integers goes into it."""
    drawn = [
        discrete_gaussian(1000, s, stream("golden")) for s in (1, 40, 2**17, 2**30)
    ]
    digest = hashlib.sha256(np.concatenate(drawn).astype("<i8").tobytes()).hexdigest()
    assert digest.startswith(GOLDEN)


@pytest.mark.parametrize(("count", "scale"), [(3, 1), (40, 2**17), (0, 5)])
def test_streams_side_by_side_draw_what_each_draws_alone(
    count: int, scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, and however many are drawn from at once."""
    names, alone = ("a", "b", "c", "d", "e"), [stream(n) for n in "abcde"]
    together = [stream(name) for name in names]
    for at_once, many in ((2**18, 2**14), (64, 2**14), (2**18, 1)):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
        monkeypatch.setattr(module, "ALONE", many)
        found = discrete_gaussians(count, scale, together)
        want = [discrete_gaussian(count, scale, one) for one in alone]
        np.testing.assert_array_equal(found, np.stack(want))


def test_words_that_favour_small_integers_are_dropped_by_each_stream() -> None:
    owner = np.array([0, 0, 0, 2, 2, 3])
    bound = 3 * 2**61  # a third of all words come too late
    together = module._Together([stream(name) for name in "abcd"], owner)
    alone = [
        stream(name).below(bound, n) for name, n in zip("acd", (3, 2, 1), strict=True)
    ]
    np.testing.assert_array_equal(together.below(bound, 6), np.concatenate(alone))


@pytest.mark.parametrize("scale", [0, -1, LARGEST + 1])
def test_a_scale_out_of_range_is_refused(scale: int) -> None:
    with pytest.raises(ConfigError, match=f"noise of {scale} steps"):
        discrete_gaussian(1, scale, stream())


def add_noise(values: torch.Tensor, std: float, words: Stream) -> torch.Tensor:
    grid = Grid.of(std)
    return grid.add(values, grid.noise(values.shape, words))


@pytest.mark.parametrize("std", [-1.0, math.inf, math.nan])
def test_noise_without_a_finite_standard_deviation_is_refused(std: float) -> None:
    with pytest.raises(ConfigError, match="standard deviation"):
        add_noise(torch.zeros(2), std, stream())


def test_noise_has_the_shape_and_type_of_the_values() -> None:
    assert add_noise(torch.zeros(()), 1.0, stream()).shape == ()
    assert add_noise(torch.zeros(2, 0), 1.0, stream()).shape == (2, 0)
    assert add_noise(torch.zeros(2, 3), 1.0, stream()).dtype == torch.float32
    assert add_noise(torch.zeros(2, 3).double(), 1.0, stream()).dtype == torch.float64


@pytest.mark.parametrize("std", [1e-7, 0.3, 1.0, 12345.6])
def test_noise_is_as_large_as_asked_and_hardly_larger(std: float) -> None:
    for reach in (None, 0.0, std):
        grid = Grid.of(std, reach=reach)
        least = FINE if reach is None else SUMMED
        assert math.log2(grid.step).is_integer()
        assert least <= grid.scale <= 2 * least
        assert std <= grid.scale * grid.step < std * (1 + 1 / least)


def test_values_and_noise_of_a_sum_are_exact_in_float32() -> None:
    grid = Grid.of(0.01, reach=5.0)
    assert EXACT * grid.step >= 5.0
    values = torch.tensor([5.0, -5.0, 4.9])
    for number in range(20):
        noise = grid.noise((3,), stream(str(number)))
        sent = grid.add(values, noise)
        assert torch.equal(sent.double(), grid.add(values.double(), noise))
        steps = sent.double() / grid.step
        assert torch.equal(steps, steps.round())
    cut = grid.add(torch.tensor([1e9]), torch.zeros(1, dtype=torch.float64))
    assert cut.item() == EXACT * grid.step


def test_a_grid_is_no_finer_than_asked() -> None:
    grid = Grid.of(0.1, reach=0.0, step=2.0**-10)
    assert (grid.step, grid.scale) == (2.0**-10, 103)
    assert Grid.of(1e-6, step=0.25) == Grid(0.25, 1)


def test_rounding_toward_zero_makes_no_norm_larger() -> None:
    grid, nothing = Grid(2.0**-4, 1), torch.zeros(1000, dtype=torch.float64)
    values = torch.from_numpy(stream().normal((1000,)))
    short = grid.add(values, nothing, "toward-zero")
    assert (short.abs() <= values.abs()).all()
    near = grid.add(values, nothing)
    assert ((near - values).abs() <= grid.step / 2).all()


def floats(value: float, std: float, draws: int) -> Iterator[torch.Tensor]:
    """Yield value plus noise as it was added: torch's, and Box-Muller's in float64."""
    values = torch.full((draws,), value)
    generator = torch.Generator().manual_seed(1)
    yield values + std * torch.randn(draws, generator=generator)
    yield values + (std * torch.from_numpy(stream().normal((draws,)))).float()


def share_off_lattice(released: torch.Tensor, value: float) -> tuple[int, int]:
    """Count small results, and those that value + noise cannot be in float32.

    A sum in which a small result comes of ``value`` and nearly its opposite has no
    digits below the last one of ``value``; noise alone has.
    """
    small = released[released.abs() < value / 16].double()
    steps = small / (value * 2.0**-24)  # value is a power of two
    return len(small), int((steps != steps.round()).sum())


def test_low_bits_tell_floating_point_noise_apart_and_not_the_grids() -> None:
    """Mironov (CCS 2012): one look at a digit, where epsilon says it is a guess."""
    value, std, draws = 1.0, 4.0, 100_000
    for zero, one in zip(
        floats(0.0, std, draws), floats(value, std, draws), strict=True
    ):
        seen, off = share_off_lattice(zero, value)
        assert off > 0.9 * seen > 500
        assert share_off_lattice(one, value)[1] == 0  # distinguished with certainty
    counts = [
        share_off_lattice(
            add_noise(torch.full((draws,), v), std, stream(str(v))), value
        )
        for v in (0.0, value)
    ]
    (seen, off), (others, off_too) = counts
    assert min(off, off_too) > 0.8 * seen > 500
    assert binomtest(off, seen, off_too / others).pvalue > 1e-6


def test_what_comes_out_is_a_multiple_of_the_step_whatever_went_in() -> None:
    grid = Grid.of(0.7, reach=0.0)
    for value in (0.0, 1 / 3, math.pi, -1e-9):
        noise = grid.noise((5000,), stream(str(value)))
        steps = grid.add(torch.full((5000,), value), noise).double() / grid.step
        assert torch.equal(steps, steps.round())
        low = np.bincount(steps.long().numpy() % 16, minlength=16)
        assert chisquare(low).pvalue > 1e-6
