"""One run, informative only: the Gaussian mechanism that all scores suggest."""

from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import nctdtrinc

from privaudit.statistics.epsilon.bound import OneRunMethod
from privaudit_labs.bounds.gaussian_fit import epsilon_from_mu

MOST = 100.0
"""What is shown at the most: scores that do not overlap at all could show anything."""

_METHOD = "two Gaussians of one spread assumed, all scores"
_FARTHEST = 1000.0  # standard errors; beyond, the t distribution has no accurate limit


@options(frozen=True, kw_only=True)
class GaussianScores(OneRunMethod):
    """The epsilon of two Gaussians of one spread that scores in and out come from.

    No score is made a guess, so none of what it tells is lost: the gap of the means
    over the spread is the mechanism's mu, its lower limit the non-central t
    distribution's. If scores are no Gaussians, as after randomised response, the figure
    can be above the truth. So it cannot refute.

    Source: Agrawal et al., "Let's ask Gauss: improved one-run privacy auditing", arXiv
    2606.12733, 2026, of which abstract and introduction were read; the body was not
    available. By its abstract and what others say of it, scores of present and absent
    records are a pair of Gaussians there, whose hockey-stick divergence has a closed
    form. Here they have one spread, and the limit is the usual one of a standardised
    difference of means, so that numbers need not be those of the paper.

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
        """Return each audit's figure, from 0 to MOST; 0 with fewer than three scores."""
        inside, outside = is_member.sum(1), (~is_member).sum(1)
        freedom = inside + outside - 2
        means = [
            np.where(chosen, scores, 0.0).sum(1) / np.maximum(chosen.sum(1), 1)
            for chosen in (is_member, ~is_member)
        ]
        centred = scores - np.where(is_member, means[0][:, None], means[1][:, None])
        spread = np.sqrt((centred**2).sum(1) / np.maximum(freedom, 1))
        # Equal scores differ from their mean by rounding, and are not far apart.
        least = 1e-9 * np.abs(scores).max(1) + np.finfo(float).tiny
        gap = np.where(means[0] - means[1] > least, means[0] - means[1], 0.0)
        width = np.sqrt(1 / np.maximum(inside, 1) + 1 / np.maximum(outside, 1))
        t = np.minimum(gap / np.maximum(spread, least) / width, _FARTHEST)
        lowest = nctdtrinc(np.maximum(freedom, 1), self.confidence, t)
        resolved = (inside > 0) & (outside > 0) & (freedom > 0)
        mu = np.where(resolved, np.maximum(lowest, 0.0) * width, 0.0)
        return np.minimum(epsilon_from_mu(mu, self.delta), MOST)

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return MOST: scores far enough apart show that much, however few they are."""
        return MOST if min(members, nonmembers) and members + nonmembers > 2 else 0.0
