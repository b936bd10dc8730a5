"""An AUROC as a card gives it: noised, with an interval from public numbers alone.

Of a client's N candidates let c be twice the rank of a score, less N + 1: these add up
to 0, and with coins x the AUROC is 1/2 + sum(c x) / (2 m n). Here 2 m n, which would
tell how many members there are, is replaced by its mean under fair coins, N (N - 1) / 2,
and clients are added up before they are divided: the mean over clients by pairs. So one
coin moves the integer sum(c x) by at most N - 1, whatever the other coins are, and its
variance where nothing leaks, given the scores, is at most sum(N (N^2 - 1)) / 12: noise
and interval are made of the numbers of candidates, which no membership enters.

What this protects is one coin from somebody who has the candidates and all scores. A
number is 0.289-Gaussian DP, so that three of one ledger have an epsilon of 2.0.

Source: Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84 (2022), corollary 2
(composition); Canonne, Kamath and Steinke, "The discrete Gaussian for differential
privacy", NeurIPS 2020 (the noise); Wilson, JASA 22 (1927) (an interval from the variance
at each of its ends).
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.core.seeds import Stream
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.privacy.discrete_gaussian import discrete_gaussian
from privaudit.privacy.grid_accounting import discrete_epsilon
from privaudit.statistics.estimate import normal_quantile
from privaudit.statistics.roc import mean_ranks

Coins = Bool[np.ndarray, " candidates"]
MU = 0.289  # sensitivity over standard deviation of each number
DELTA = 1e-5
DIGITS = 4  # of what is printed: the noise is larger from some 50 candidates up
_FINE, _COARSE = 2**10, 2**16  # steps between integers; candidates from which it is 1


@dataclass(frozen=True)
class RankQuery:
    """An integer linear in the membership of some candidates.

    Attributes:
        sizes: Candidates of each client, in their order.
        records: Where each candidate stands in the data set.
        ranks: Of each twice its score's rank among its client's, less N + 1.
    """

    sizes: tuple[int, ...]
    records: Int[np.ndarray, " candidates"]
    ranks: Int[np.ndarray, " candidates"]

    @classmethod
    def of(
        cls,
        records: Sequence[Int[np.ndarray, " _"]],
        scores: Sequence[Float[np.ndarray, " _"]],
    ) -> "RankQuery":
        """Return what is asked of clients' candidates and their scores.

        Example:
            >>> RankQuery.of([np.arange(3)], [np.array([0.1, 7.0, 7.0])]).ranks
            array([-2,  1,  1])
        """
        ranks = [2 * mean_ranks(one) - len(one) - 1 for one in scores]
        return cls(
            tuple(map(len, scores)),
            np.concatenate(records).astype(np.int64),
            np.concatenate(ranks).astype(np.int64),
        )

    @property
    def digest(self) -> str:
        """The SHA-256 of all that it asks: another order of two scores is another."""
        parts = [np.array(self.sizes), self.records, self.ranks]
        content = b"".join(part.astype("<i8").tobytes() for part in parts)
        return hashlib.sha256(len(self.sizes).to_bytes(8) + content).hexdigest()

    @property
    def sensitivity(self) -> int:
        """By how much one coin moves the sum at most, whatever the ranks are."""
        reach = np.repeat(np.array(self.sizes) - 1, self.sizes)
        _, coin = np.unique(self.records, return_inverse=True)
        return max(1, int(np.bincount(coin, reach).max()))

    @property
    def pairs(self) -> float:
        """What the sum is divided by: twice the pairs that fair coins make on average."""
        return max(1.0, sum(n * (n - 1) for n in self.sizes) / 2)

    @property
    def null_sd(self) -> float:
        """The AUROC's standard deviation where nothing leaks and no two scores tie."""
        return math.sqrt(sum(n * (n * n - 1) for n in self.sizes) / 12) / self.pairs

    @property
    def fine(self) -> int:
        """Steps of the noise between two integers."""
        return _FINE if self.sensitivity < _COARSE else 1

    @property
    def scale(self) -> int:
        """Standard deviation of the noise in steps."""
        return math.ceil(self.sensitivity * self.fine / MU)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise, of an AUROC."""
        return self.scale / self.fine / self.pairs

    def exact(self, is_member: Coins) -> int:
        """Return the sum over members: private."""
        return int(self.ranks[is_member].sum())

    def noised(self, is_member: Coins, stream: Stream) -> int:
        """Return the sum in steps with noise of a stream, which answers this query only."""
        noise = int(discrete_gaussian(1, self.scale, stream)[0])
        return self.exact(is_member) * self.fine + noise

    def auroc(self, noised: int) -> float:
        """Return the AUROC that a noised sum stands for, in [0, 1]."""
        value = 0.5 + noised / self.fine / self.pairs
        return round(min(max(value, 0.0), 1.0), DIGITS)


def interval(
    value: float, noise_sd: float, null_sd: float, confidence: float
) -> tuple[float, float]:
    """Return the AUROCs that a noised one does not rule out.

    Those A within z standard deviations, with the noise's variance plus 4 A (1 - A) of
    that where nothing leaks: no less than that of normal scores of any distance.

    Example:
        >>> interval(0.5, 0.0123, 0.0248, 0.95)
        (0.446, 0.554)
    """
    z = normal_quantile(confidence)
    spread, noise = 4 * (z * null_sd) ** 2, (z * noise_sd) ** 2
    centre, width = (2 * value + spread) / 2, 1 + spread
    root = math.sqrt(max(centre**2 - width * (value**2 - noise), 0.0))
    low, high = (max(0.0, min(1.0, (centre + s * root) / width)) for s in (-1, 1))
    return min(round(low, DIGITS), value), max(round(high, DIGITS), value)


@cache
def epsilon_of(numbers: int) -> float:
    """Return the epsilon at :data:`DELTA` of so many numbers about one ledger together.

    Example:
        >>> [round(epsilon_of(count), 2) for count in (0, 1, 3, 10)]
        [0.0, 1.09, 2.0, 3.95]
    """
    if not numbers:
        return 0.0
    mu = MU * math.sqrt(numbers)
    return discrete_epsilon(
        lambda delta: gaussian_epsilon(mu, delta), DELTA,
        values=numbers, scale=math.ceil(_FINE / MU),
    )  # fmt: skip
