"""How many records an audit or a comparison takes, before any is made.

Scores are taken as binormal with equal spread: for an AUROC near 0.5 any other shape changes
little, since every placement is then nearly uniform. Where an audit of the same kind was made
already, :func:`privaudit.statistics.verdict.enough_to_exclude` asks its interval instead.

Source: the variance: Bamber, "The area above the ordinal dominance graph and the area
below the receiver operating characteristic graph", Journal of Mathematical Psychology
12, 1975; sample sizes: Obuchowski and McClish, Statistics in Medicine 16, 1997.
"""

import math
from dataclasses import dataclass

from scipy.special import logit, ndtr, ndtri, owens_t, stdtrit

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import normal_quantile

_POWER = 0.8  # as usual
_MOST = 10**9  # records of a class: beyond it the answer is "never"


@dataclass(frozen=True)
class AurocDesign:
    """An audit that is to tell an AUROC from another value.

    Attributes:
        auroc: The true one, in (0, 1).
        against: What its interval is to exclude, in (0, 1): 0.5 to find a leak,
            0.5 + margin to rule one out.
        confidence: Of the two-sided interval, in (0, 1).

    Raises:
        ConfigError: A value is out of range, or the two AUROCs are the same.
    """

    auroc: float
    against: float = 0.5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check_aurocs(self.auroc, self.against)
        normal_quantile(self.confidence)
        _check_apart(self.auroc, self.against)

    def power(self, per_class: int | float) -> float:
        """Return the chance that the interval excludes ``against``.

        On the right side, at so many members and so many non-members. The interval is
        that of :func:`privaudit.statistics.roc.auroc`: normal on the logit scale.
        """
        value = self.auroc
        error = math.sqrt(auroc_variance(value, per_class)) / (value * (1 - value))
        apart = abs(float(logit(value) - logit(self.against)))
        return float(ndtr(apart / error - normal_quantile(self.confidence)))


@dataclass(frozen=True)
class DifferenceDesign:
    """A paired comparison that is to tell a difference of AUROCs from another value.

    Attributes:
        difference: The true one, in (-1, 1).
        against: What its interval is to exclude, in (-1, 1): 0 to find a change, the
            margin to rule a larger one out.
        baseline: The second AUROC; the first is ``baseline + difference``.
        correlation: Of the two AUROCs, since they are of the same records, in [-1, 1);
            0.56 to 1 between trainers on digits, 0 between unrelated attacks.
        confidence: Of the two-sided interval, in (0, 1).

    Raises:
        ConfigError: A value is out of range, or there is nothing to tell apart.
    """

    difference: float
    against: float = 0.0
    baseline: float = 0.5
    correlation: float = 0.5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check_aurocs(self.baseline, self.baseline + self.difference)
        normal_quantile(self.confidence)
        if not -1 < self.against < 1:
            raise ConfigError(
                f"A difference of {self.against:g} is not between -1 and 1, as those of "
                "AUROCs are. Use 0 to find a change, 0.05 to rule a larger one out."
            )
        _check_apart(self.difference, self.against)
        if not -1 <= self.correlation < 1:
            raise ConfigError(
                f"A correlation of {self.correlation} is not in [-1, 1). Use 0 for "
                "attacks that have nothing in common, 0.5 where nothing is known."
            )

    def power(self, per_class: int | float) -> float:
        """Return the chance that the interval excludes ``against``.

        On the right side, at so many members and so many non-members; Student's t as in
        :func:`privaudit.statistics.comparisons.pooled_paired_auroc_difference`.
        """
        first = math.sqrt(auroc_variance(self.baseline + self.difference, per_class))
        second = math.sqrt(auroc_variance(self.baseline, per_class))
        shared = 2 * self.correlation * first * second
        error = math.sqrt(first * first + second * second - shared)
        freedom = max(2 * (per_class - 1), 1)
        quantile = float(stdtrit(freedom, (1 + self.confidence) / 2))
        return float(ndtr(abs(self.difference - self.against) / error - quantile))


def auroc_variance(auroc: float, per_class: int | float) -> float:
    """Return the variance of an AUROC of so many members and so many non-members.

    Args:
        auroc: The true one, in (0, 1).
        per_class: At least 1; need not be whole.

    Example:
        >>> round(auroc_variance(0.5, 100), 6)  # (2 * 100 + 1) / (12 * 100^2)
        0.001675
    """
    both = auroc - 2 * float(owens_t(float(ndtri(auroc)), 1 / math.sqrt(3)))
    # `both`: two members outscore one non-member, and likewise the other way round.
    pair_variance, rest = auroc * (1 - auroc), both - auroc * auroc
    return (pair_variance + 2 * (per_class - 1) * rest) / per_class**2


def required_n(design: AurocDesign | DifferenceDesign, power: float = _POWER) -> int:
    """Return how many members, and as many non-members, give that power.

    Spread over clients it takes about as many in all. ``power`` is the chance of success.

    Raises:
        ConfigError: ``power`` is out of range, or a billion are not enough.

    Example:
        >>> required_n(AurocDesign(0.55)), required_n(AurocDesign(0.52))
        (525, 3272)
    """
    if not 0 < power < 1:
        raise ConfigError(
            f"A power of {power} is not between 0 and 1. Give a share, such as 0.8."
        )
    high = 2
    while design.power(high) < power:
        if high == _MOST:
            raise ConfigError(
                f"{design} does not reach a power of {power:g} at {_MOST} records of "
                "each class. Ask for a larger difference."
            )
        high = min(2 * high, _MOST)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if design.power(middle) >= power else (middle, high)
    return high


def _check_aurocs(*values: float) -> None:
    for value in values:
        if not 0 < value < 1:
            raise ConfigError(
                f"An AUROC of {value:g} is not between 0 and 1. At 0 and 1 there is no "
                "error to plan for: take 0.99."
            )


def _check_apart(value: float, against: float) -> None:
    if value == against:
        raise ConfigError(
            f"No number of records tells {value:g} from {against:g}. Ask for two "
            "values that differ."
        )
