"""Numbers with intervals, and the intervals that need nothing but counts or replicates.

Every number that privaudit reports is an :class:`Estimate`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic_core import core_schema
from scipy.special import betaincinv, ndtri, stdtrit

from privaudit.core.errors import ConfigError, shown


def check_confidence(confidence: float) -> None:
    """Raise ConfigError unless ``confidence`` is in (0, 1)."""
    if not 0 < confidence < 1:
        raise ConfigError(
            f"A confidence of {confidence} is not between 0 and 1. "
            "Give a share, such as 0.95."
        )


def normal_quantile(confidence: float) -> float:
    """Return the two-sided standard-normal quantile, 1.96 for 0.95."""
    check_confidence(confidence)
    return float(ndtri((1 + confidence) / 2))


def clopper_pearson(
    successes: Float[np.ndarray, " rates"], trials: int | float, confidence: float
) -> tuple[Float[np.ndarray, " rates"], Float[np.ndarray, " rates"]]:
    """Return the exact binomial bounds, 0 without a success and 1 without a failure.

    Counts need not be whole: survey statistics puts effective sample sizes in.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated
    in the case of the binomial", Biometrika 26, 1934.
    """
    check_confidence(confidence)
    failures, tail = trials - successes, (1 - confidence) / 2
    tiny = 1e-9  # a shape of 0 is NaN: shift it, then overwrite the result
    low = betaincinv(np.maximum(successes, tiny), failures + 1, tail)
    high = betaincinv(successes + 1, np.maximum(failures, tiny), 1 - tail)
    return (np.where(successes > tiny, low, 0.0), np.where(failures > tiny, high, 1.0))


def wilson(rate: float, trials: int, confidence: float) -> tuple[float, float]:
    """Return the score bounds of a proportion, which hold it.

    Source: Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22, 1927.
    """
    z = normal_quantile(confidence)
    shrink = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / shrink
    spread = rate * (1 - rate) / trials + z * z / (4 * trials * trials)
    half = z * math.sqrt(spread) / shrink
    # The bound at 0 and 1 is 0 and 1, but for rounding.
    return min(centre - half, rate), max(centre + half, rate)


Rows = Float[np.ndarray, "rows records"]


def weighted_means(
    scores: Rows, weights: Rows | Bool[np.ndarray, "rows records"]
) -> tuple[Float[np.ndarray, " rows"], Rows]:
    """Return each row's weighted mean, and the influence of each record on it.

    Weights are 0 or more, of any sum above 0.
    """
    share = weights / weights.sum(axis=1, keepdims=True)
    means = (scores * share).sum(axis=1)
    return means, (scores - means[:, None]) * share


def inflation(records: int | float) -> float:
    """Return what a variance is multiplied by, its mean being estimated as well."""
    return records / max(1, records - 1)


def effective_count(
    values: Float[np.ndarray, " records"] | Bool[np.ndarray, " records"],
    clusters: Int[np.ndarray, " clusters"],
) -> float:
    """Return how many independent records have a mean as sure as that of these.

    At most their number. Where all values are equal, it is the number of clusters.

    Source: Korn and Graubard, "Confidence intervals for proportions with small expected
    number of positive counts estimated from survey data", Survey Methodology 24, 1998,
    with their adjustment for degrees of freedom.
    """
    _, number = np.unique(clusters, return_inverse=True)
    count, size = int(number.max()) + 1, len(values)
    spread = values - values.mean()
    plain = float(spread @ spread) * inflation(size)
    if not plain or count == 1:
        return float(count)
    sums = np.bincount(number, spread)
    between = float(sums @ sums) * inflation(count)
    if not between:  # all clusters alike
        return float(size)
    few = stdtrit(size - 1, 0.975) / stdtrit(count - 1, 0.975)
    return min(float(size), size * plain / between * float(few) ** 2)


def half_width(
    influence: Float[np.ndarray, " records"], records: int, confidence: float
) -> float:
    """Return half the width of a normal interval, from influences of ``records``."""
    variance = (influence**2).sum() * inflation(records)
    return float(normal_quantile(confidence) * np.sqrt(variance))


_MEAN = "mean of replicates"
_PAIRED_MEAN = "mean of paired differences of replicates"
STUDENT = ", t with {freedom} degrees of freedom"


@dataclass(frozen=True)
class Estimate:
    """A point estimate with a two-sided confidence interval.

    Attributes:
        value: The point estimate; NaN where there is no estimate.
        low: Lower end of the interval, at most ``value``.
        high: Upper end of the interval, at least ``value``.
        n: What was counted, in its parts: members and non-members, records, clients
            or seeds.
        method: How value and interval were found, in words.
        confidence: Nominal coverage of the interval, in (0, 1).
        unresolved: Why there is no interval, such as "needs 1000 non-members, has
            100"; empty where there is one.

    Raises:
        ConfigError: The interval does not hold the value, or a number is missing and
            ``unresolved`` does not say why.
    """

    value: float
    low: float
    high: float
    n: tuple[int, ...]
    method: str
    confidence: float = 0.95
    unresolved: str = ""

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        if not self.unresolved and not self.low <= self.value <= self.high:
            raise ConfigError(
                f"An estimate of {self.value} has the interval [{self.low}, "
                f"{self.high}]. Order them, or say in `unresolved` what is missing."
            )

    def __str__(self) -> str:
        number = "" if math.isnan(self.value) else f"{self.value:.3f}"
        if self.unresolved:
            return (number and f"{number}, interval ") + (
                f"unresolved ({self.unresolved})"
            )
        counts = " + ".join(str(count) for count in self.n)
        return f"{number} [{self.low:.3f}, {self.high:.3f}], n = {counts}"

    def __float__(self) -> float:
        """Return the value; NaN where there is none."""
        return float(self.value)

    def __format__(self, spec: str) -> str:
        """Write value and ends by a format such as ``.2f``; without one as a text.

        Example:
            >>> f"{Estimate(0.6123, 0.55, 0.67, (100, 90), 'DeLong'):.2f}"
            '0.61 [0.55, 0.67]'
        """
        if not spec or self.unresolved:
            return format(str(self), "" if self.unresolved else spec)
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __lt__(self, other: "Estimate | float") -> bool:
        """Compare values, so that estimates sort; intervals say what is proved."""
        return float(self) < float(other)

    def __gt__(self, other: "Estimate | float") -> bool:
        return float(self) > float(other)

    def _repr_html_(self) -> str:
        return escape(str(self))

    def excludes(self, value: int | float) -> bool:
        """Return whether ``value`` lies outside the interval; never if unresolved."""
        return not self.unresolved and not self.low <= value <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them, NaN as None."""
        return {
            name: None if isinstance(entry, float) and math.isnan(entry) else entry
            for name, entry in {**asdict(self), "n": list(self.n)}.items()
        }

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "Estimate":
        """Return the estimate that :meth:`to_dict` wrote.

        Raises:
            ConfigError: A field is missing or unknown.
        """
        names = {field.name for field in fields(cls)}
        if set(entries) != names:
            raise ConfigError(
                f"An estimate has the fields {sorted(names)}, and there are "
                f"{sorted(entries)}. Was this written by another version?"
            )
        texts = [entries[name] for name in ("method", "unresolved")]
        counts = entries["n"]
        whole = isinstance(counts, list | tuple) and all(
            isinstance(one, int) and not isinstance(one, bool) for one in counts
        )
        if not all(isinstance(text, str) for text in texts) or not whole:
            raise ConfigError(
                f"An estimate has texts as method and unresolved, and whole numbers as "
                f"n, and there are {shown([*texts, counts])}. It was altered."
            )
        numbers = {
            name: math.nan if entries[name] is None else float(entries[name])
            for name in ("value", "low", "high")
        }
        return cls(**{**entries, **numbers, "n": tuple(entries["n"])})

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: object
    ) -> core_schema.CoreSchema:
        """Have pydantic read and write estimates, in other dataclasses too."""
        return core_schema.no_info_plain_validator_function(
            cls.from_dict,
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_dict),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _: object, __: object) -> dict[str, Any]:
        """Return the JSON Schema of what :meth:`to_dict` writes."""
        number: dict[str, Any] = {"type": ["number", "null"]}
        text = {"type": "string"}
        properties = {
            **dict.fromkeys(("value", "low", "high"), number),
            "n": {"type": "array", "items": {"type": "integer"}},
            "method": text,
            "confidence": {"type": "number"},
            "unresolved": text,
        }
        return {
            "title": cls.__name__,
            "description": "A number with its interval; null where there is none.",
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        }


def unresolved(
    reason: str,
    n: tuple[int, ...],
    method: str,
    confidence: float,
    value: float = math.nan,
) -> Estimate:
    """Return an estimate without an interval, and why."""
    return Estimate(value, math.nan, math.nan, n, method, confidence, reason)


def needs(wanted: int, what: str, found: int) -> str:
    """Say of an estimate without an interval what it would take."""
    return f"needs {wanted} {what}, has {found}"


def proportion(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Return a proportion with its exact (Clopper-Pearson) interval.

    Args:
        successes: From 0 to ``trials``.
        trials: Independent, at least one.
        confidence: Coverage is at least this, in (0, 1).

    Raises:
        ConfigError: There is no trial, or there are more successes than trials.

    Example:
        >>> print(proportion(5, 10))
        0.500 [0.187, 0.813], n = 10
    """
    _check_counts(successes, trials)
    low, high = clopper_pearson(np.array([float(successes)]), trials, confidence)
    ends = float(low[0]), float(high[0])
    method = "proportion, Clopper-Pearson"
    return Estimate(successes / trials, *ends, (trials,), method, confidence)


def two_proportions(
    successes_a: int,
    trials_a: int,
    successes_b: int,
    trials_b: int,
    confidence: float = 0.95,
) -> Estimate:
    """Return the difference of two independent proportions, first less second.

    Source: Newcombe, "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, 1998, method 10 (hybrid score).

    Ranges and errors are those of :func:`proportion`; coverage is nominal.

    Example:
        >>> print(two_proportions(56, 70, 48, 80))
        0.200 [0.052, 0.334], n = 70 + 80
    """
    _check_counts(successes_a, trials_a)
    _check_counts(successes_b, trials_b)
    rate_a, rate_b = successes_a / trials_a, successes_b / trials_b
    low_a, high_a = wilson(rate_a, trials_a, confidence)
    low_b, high_b = wilson(rate_b, trials_b, confidence)
    value = rate_a - rate_b
    low = value - math.hypot(rate_a - low_a, high_b - rate_b)
    high = value + math.hypot(high_a - rate_a, rate_b - low_b)
    method = "difference of proportions, Newcombe's hybrid score"
    return Estimate(value, low, high, (trials_a, trials_b), method, confidence)


def mean_with_t(
    values: Sequence[float] | Float[np.ndarray, " replicates"], confidence: float = 0.95
) -> Estimate:
    """Return the mean of replicates with Student's interval.

    A replicate is whatever was repeated independently: a seed, a client. The records
    inside one are none. Equal replicates give an interval without width.

    Args:
        values: One per replicate. With a single one the interval is unresolved.
        confidence: Coverage for normal replicates, in (0, 1).

    Raises:
        ConfigError: There are no replicates, or one is not finite.

    Example:
        >>> print(mean_with_t([0.5, 0.6, 0.7]))
        0.600 [0.352, 0.848], n = 3
        >>> print(mean_with_t([0.5]))
        0.500, interval unresolved (needs 2 replicates, has 1)
    """
    replicates = np.asarray(values, np.float64)
    count = len(replicates)
    if not count or not np.isfinite(replicates).all():
        raise ConfigError(
            f"A mean needs finite replicates, and there are {list(values)}. "
            "Leave out runs that failed, and say so."
        )
    mean = float(replicates.mean())
    method = _MEAN + STUDENT.format(freedom=count - 1)
    if count == 1:
        reason = needs(2, "replicates", 1)
        return unresolved(reason, (1,), _MEAN, confidence, mean)
    error = float(replicates.std(ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, (1 + confidence) / 2)) * error
    return Estimate(mean, mean - half, mean + half, (count,), method, confidence)


def paired_difference(
    a: Sequence[float] | Float[np.ndarray, " replicates"],
    b: Sequence[float] | Float[np.ndarray, " replicates"],
    confidence: float = 0.95,
) -> Estimate:
    """Return the mean of ``a - b`` over paired replicates, with Student's interval.

    Raises:
        ConfigError: The two differ in length, or as :func:`mean_with_t`.

    Example:
        >>> print(paired_difference([0.7, 0.8, 0.9], [0.6, 0.6, 0.6]))
        0.200 [-0.048, 0.448], n = 3
    """
    if len(a) != len(b):
        raise ConfigError(
            f"A paired difference needs as many of a as of b, and there are {len(a)} "
            f"and {len(b)}. Pair them by replicate."
        )
    differences = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    mean = mean_with_t(differences, confidence)
    return replace(mean, method=mean.method.replace(_MEAN, _PAIRED_MEAN))


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials == 0:
        raise ConfigError(
            f"{successes} successes in {trials} trials are no proportion. "
            "Give at least one trial, and no more successes than trials."
        )
