"""Pareto dominance between settings by test: which are worse than another.

Of two noisy numbers one is always lower, so a front of point values calls half of all
equal settings dominated. Here a setting is dominated if another is better by more than
a margin in one measure and not worse by more than a margin in the other, both by tests
over the seeds that the two share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri, stdtr, stdtrit

from privaudit.core.errors import ConfigError
from privaudit.statistics.comparisons import holm
from privaudit.statistics.estimate import Estimate, check_confidence, mean_with_t

Replicates = Mapping[int, tuple[float, float]]  # by seed: leak and utility
Gains = tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, " seeds"]]
Way = Literal["leak", "utility"]

FEWEST = 3  # seeds: two may agree by chance, and then seem exact
_MOST = 200  # seeds that anybody would train
_POWER = float(ndtri(0.8))  # that a test succeeds, in standard errors


@dataclass(frozen=True)
class Margins:
    """The largest differences of leaks and of utility that do not matter, in (0, 1)."""

    leak: float = 0.05
    utility: float = 0.05

    def __post_init__(self) -> None:
        for name, margin in (("leak", self.leak), ("utility", self.utility)):
            if not 0 < margin < 1:
                raise ConfigError(
                    f"A margin of {margin} for {name} is not between 0 and 1. It is "
                    "the largest difference that does not matter: try 0.05."
                )


@dataclass(frozen=True)
class Domination:
    """One setting that another is better than.

    Attributes:
        worse: The position of the dominated setting.
        way: In what it is better by more than the margin.
        p_value: After Holm, for all pairs and ways.
        leak: By how much less the better one leaks, paired by seed.
        utility: By how much more utility it has, paired by seed.
    """

    worse: int
    better: int
    way: Way
    p_value: float
    leak: Estimate
    utility: Estimate


@dataclass(frozen=True)
class Front:
    """What may be said about settings in leak and utility.

    Attributes:
        dominations: All that were found; a setting may be dominated by several.
        undecided: By position: how many others might dominate the setting, as far as
            these seeds tell.
        further: By position: how many more seeds decide against all of those in 80 of 100
            cases, if it is as it looks; 0 where none is undecided, or nobody knows.
        margins: From where on differences matter.
        alpha: The chance of any false domination.
    """

    count: int
    dominations: tuple[Domination, ...]
    undecided: tuple[int, ...]
    further: tuple[int, ...]
    margins: Margins
    alpha: float

    @property
    def not_dominated(self) -> tuple[int, ...]:
        """Positions of the settings that no other dominates: at least one."""
        worse = {domination.worse for domination in self.dominations}
        return tuple(n for n in range(self.count) if n not in worse)

    @property
    def tests(self) -> int:
        """How many hypotheses Holm counted: ordered pairs, and two ways."""
        return 2 * self.count * (self.count - 1)

    def dominating(self, position: int) -> list[Domination]:
        """Return what dominates a setting: what is not dominated itself comes first."""
        stay = self.not_dominated
        dominations = [one for one in self.dominations if one.worse == position]
        return sorted(
            dominations, key=lambda one: (one.better not in stay, one.p_value)
        )


def find_front(
    settings: Sequence[Replicates], margins: Margins | None = None, alpha: float = 0.05
) -> Front:
    """Return which settings are dominated, by paired t tests over shared seeds.

    One setting dominates another in a way if it is better by more than the margin in
    one measure, and worse by less than the margin in the other. Each way is one
    hypothesis, with the larger of its two one-sided p-values (an intersection-union
    test); Holm adjusts for all ordered pairs and both ways. So the chance of any false
    domination is at most ``alpha``, however many settings there are. In units of the
    margins a dominating setting gains more than it loses, so there is no circle, and
    where all seeds are shared at least one setting stays.

    Source: intersection-union: Berger, "Multiparameter hypothesis testing and
    acceptance sampling", Technometrics 24, 1982.

    Args:
        settings: The leak and the utility of each, by seed: lower leaks and higher
            utility are better. Pairs that share fewer than three seeds are undecided.
        margins: 0.05 each by default.
        alpha: The most that the chance of any false domination may be, in (0, 1).

    Raises:
        ConfigError: ``alpha`` is out of range, or a value is not finite.

    Example:
        >>> leaky = {1: (0.70, 0.80), 2: (0.72, 0.81), 3: (0.71, 0.81)}
        >>> tight = {1: (0.51, 0.80), 2: (0.52, 0.82), 3: (0.51, 0.81)}
        >>> find_front([leaky, tight]).not_dominated
        (1,)
    """
    check_confidence(alpha)
    margins = margins or Margins()
    pairs = [
        (worse, better, _gains(ours, theirs))
        for (worse, ours), (better, theirs) in permutations(enumerate(settings), 2)
    ]
    adjusted = holm([p for _, _, gains in pairs for p in _ways(gains, margins)])
    dominations, undecided = [], [0] * len(settings)
    further: list[list[int]] = [[0] for _ in settings]
    for (worse, better, gains), p_values in zip(
        pairs, adjusted.reshape(-1, 2), strict=True
    ):
        best = int(p_values.argmin())
        if p_values[best] <= alpha:
            way: Way = "utility" if best else "leak"
            leak, utility = (mean_with_t(gain, 1 - alpha) for gain in gains)
            p_value = float(p_values[best])
            dominations.append(Domination(worse, better, way, p_value, leak, utility))
        elif len(gains[0]) < FEWEST or not _has_no_room(
            np.array([[mean_with_t(gain, 1 - alpha).high for gain in gains]]), margins
        ):
            undecided[worse] += 1
            further[worse].append(_further(gains, margins, alpha, len(adjusted)))
    more = tuple(0 if min(one[1:], default=0) == 0 else max(one) for one in further)
    return Front(
        len(settings), tuple(dominations), tuple(undecided), more, margins, alpha
    )


def _gains(ours: Replicates, theirs: Replicates) -> Gains:
    """Return what the second of two settings has over the first."""
    shared = [seed for seed in ours if seed in theirs]
    values = np.array([(*ours[seed], *theirs[seed]) for seed in shared]).reshape(-1, 4)
    if not np.isfinite(values).all():
        raise ConfigError(
            "Settings are compared by finite numbers, and a leak or a utility is not. "
            "Leave out runs that failed, and say so."
        )
    return values[:, 0] - values[:, 2], values[:, 3] - values[:, 1]


def _ways(gains: Gains, margins: Margins) -> tuple[float, float]:
    """Return the p-values of no domination by leak, and by utility."""
    leak, utility = gains
    return (
        max(_p_above(leak, margins.leak), _p_above(utility, -margins.utility)),
        max(_p_above(utility, margins.utility), _p_above(leak, -margins.leak)),
    )


def _p_above(gains: Float[np.ndarray, " seeds"], least: float) -> float:
    """Return Student's one-sided p-value of a mean of at most ``least``."""
    count = len(gains)
    if count < FEWEST:
        return 1.0
    beyond = float(gains.mean()) - least
    error = float(gains.std(ddof=1)) / math.sqrt(count)
    if error == 0:
        return 0.0 if beyond > 0 else 1.0
    return float(stdtr(count - 1, -beyond / error))


def _has_no_room(
    high: Float[np.ndarray, "cases 2"], margins: Margins
) -> Bool[np.ndarray, " cases"]:
    """Say whether upper ends leave no room for a domination of a pair."""
    edges = np.array([margins.leak, margins.utility])
    # A gain of little, or a loss of much.
    return np.asarray((high < edges).all(axis=1) | (high < -edges).any(axis=1))


def _further(gains: Gains, margins: Margins, alpha: float, tests: int) -> int:
    """Return how many more seeds decide on a pair if means and spreads stay; 0: too many."""
    count = len(gains[0])
    if count < FEWEST:
        return 0
    mean, spread = np.mean(gains, axis=1), np.std(gains, axis=1, ddof=1)
    # Beyond the least that each way asks of both: by leak, and by utility.
    beyond = mean - [[margins.leak, -margins.utility], [-margins.leak, margins.utility]]
    seeds = np.arange(count + 1, _MOST)
    error = (spread / np.sqrt(seeds)[:, None])[:, None]
    level = [[1 - alpha / tests], [1 - alpha / 2]]
    found, out = (stdtrit(seeds - 1, level) + _POWER)[..., None, None]
    decided = (beyond > found * error).all(axis=-1).any(axis=-1)
    decided |= _has_no_room((mean + out * error)[:, 0], margins)
    return int(decided.argmax()) + 1 if decided.any() else 0
