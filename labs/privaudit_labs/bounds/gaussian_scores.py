"""One run, informative only: the pair of Gaussians that all scores suggest."""

from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import chdtri, ndtr, stdtrit

from privaudit.statistics.epsilon.bound import OneRunMethod

MOST = 100.0
"""What is shown at the most: scores that do not overlap at all could show anything."""

_METHOD = "two Gaussians assumed, each of its own spread, all scores"
_LIMITS = 5  # of the gap from below, and of both deviations from below and above
_STEPS = 9  # of a deviation between its limits
_HALVINGS = 40  # of MOST leave 1e-10


@options(frozen=True, kw_only=True)
class GaussianScores(OneRunMethod):
    """The epsilon of two Gaussians, each of its own spread, that scores in and out come from.

    No score is made a guess, so none of what it tells is lost. The gap of the means and
    both deviations have limits that hold together, by Bonferroni: Welch's t, and chi
    squared. Shown is the least epsilon of all pairs of Gaussians within, by hockey-stick
    divergences both ways. If scores are no Gaussians, as after randomised response, the
    figure can be above the truth. So it cannot refute.

    Source: Agrawal, Wei, Singh, Magdon-Ismail, Zikas, "Let's ask Gauss: improved one-run
    privacy auditing", arXiv 2606.12733, 2026, of which abstract, introduction and two
    summaries were read. Its region is by bootstrap or Bonferroni's intervals; which
    limits make it is ours, so that numbers need not be those of the paper.

    Attributes:
        delta: At which epsilon is meant, in (0, 1): at 0 it is infinite.
    """

    can_refute: ClassVar[bool] = False

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @property
    def method(self) -> str:
        """How the figure is found, in words."""
        return _METHOD

    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
        """Return each audit's figure, from 0 to MOST; 0 with fewer than two of a kind."""
        tail = self.significance / _LIMITS
        # Equal scores differ from their mean by rounding, and are not far apart.
        least = 1e-9 * np.abs(scores).max(1) + 1e-60  # of which a fourth power is not 0
        inside, outside = (_Side.of(scores, c, least) for c in (is_member, ~is_member))
        gap = inside.mean - outside.mean
        shares = [side.deviation**2 / side.size for side in (inside, outside)]
        error = np.sqrt(shares[0] + shares[1])
        freedom = error**4 / sum(
            share**2 / side.freedom
            for share, side in zip(shares, (inside, outside), strict=True)
        )
        gap = np.where(gap > least, gap - stdtrit(freedom, 1 - tail) * error, 0.0)
        pairs = _noisiest(inside.limits(tail), outside.limits(tail))
        shown = gaussian_pair_epsilon(np.maximum(gap, 0.0), *pairs, self.delta).min(0)
        return np.where((inside.size > 1) & (outside.size > 1), shown, 0.0)

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return MOST: scores far enough apart show that much, however few they are."""
        return MOST if min(members, nonmembers) > 1 else 0.0


class _Side(NamedTuple):
    """Scores in or out, by audit."""

    size: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, chosen: np.ndarray, least: np.ndarray) -> "_Side":
        count = np.maximum(chosen.sum(1), 1)
        mean = np.where(chosen, scores, 0.0).sum(1) / count
        squares = np.where(chosen, scores - mean[:, None], 0.0) ** 2
        spread = np.sqrt(squares.sum(1) / np.maximum(count - 1, 1))
        return cls(count, mean, np.maximum(spread, least))

    @property
    def freedom(self) -> np.ndarray:
        return np.maximum(self.size - 1, 1)

    def limits(self, tail: float) -> tuple[np.ndarray, np.ndarray]:
        """Return what the deviation is at least and at most, each but for the tail."""
        low, high = (
            self.deviation * np.sqrt(self.freedom / chdtri(self.freedom, share))
            for share in (tail, 1 - tail)
        )
        return low, high


Limits = tuple[np.ndarray, np.ndarray]


def _noisiest(inside: Limits, outside: Limits) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of deviations within limits, among them one of the least epsilon.

    Equal noise on both sides leaks nothing. So the least is where no more of it fits:
    where one of both is at its upper limit.
    """

    def other(limits: Limits, highest: np.ndarray) -> np.ndarray:
        steps = np.linspace(*limits, _STEPS)
        return np.concatenate([steps, np.clip(highest, *limits)[None]])

    of_inside, of_outside = other(inside, outside[1]), other(outside, inside[1])
    return (
        np.concatenate([np.broadcast_to(inside[1], of_outside.shape), of_inside]),
        np.concatenate([of_outside, np.broadcast_to(outside[1], of_inside.shape)]),
    )


def gaussian_pair_epsilon(
    gap: Float[np.ndarray, "*#some"],
    inside: Float[np.ndarray, "*#some"],
    outside: Float[np.ndarray, "*#some"],
    delta: float,
) -> Float[np.ndarray, "*#some"]:
    """Return the least epsilon, at most MOST, of N(gap, inside^2) and N(0, outside^2)."""
    low, high = np.zeros_like(inside), np.full_like(inside, MOST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = np.maximum(
            hockey_stick(gap, inside, outside, middle),
            hockey_stick(gap, outside, inside, middle),
        )
        low = np.where(beyond > delta, middle, low)
        high = np.where(beyond > delta, high, middle)
    return np.where(low > 0, high, 0.0)


def hockey_stick(
    gap: Float[np.ndarray, "*#some"],
    first: Float[np.ndarray, "*#some"],
    second: Float[np.ndarray, "*#some"],
    epsilon: Float[np.ndarray, "*#some"],
) -> Float[np.ndarray, "*#some"]:
    """Return P(A) - e^epsilon Q(A), A = {log P / Q > epsilon}.

    P is N(gap, first^2), Q is N(0, second^2), the gap at least 0. A lies beyond the roots
    of a x^2 / 2 + b x + c, or between them where a < 0.
    """
    a, b = second**-2.0 - first**-2.0, gap / first**2
    c = np.log(second / first) - epsilon - b * gap / 2
    discriminant = b**2 - 2 * a * c
    q = np.minimum(-(b + np.sqrt(np.maximum(discriminant, 0.0))), -np.finfo(float).tiny)
    beyond = a >= 0
    with np.errstate(
        divide="ignore", over="ignore"
    ):  # infinitely far, and then no mass
        far, near = np.where(a == 0, -np.inf, q / a), 2 * c / q
        masses = [
            np.where(
                beyond,
                ndtr((far - mean) / spread) + ndtr((mean - near) / spread),
                _between((near - mean) / spread, (far - mean) / spread),
            )
            for mean, spread in ((gap, first), (0.0, second))
        ]
    return np.where(
        beyond | (discriminant > 0), masses[0] - np.exp(epsilon) * masses[1], 0.0
    )


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return a normal distribution's mass, exact in the far tail, too."""
    turned = low > 0
    return np.where(turned, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
