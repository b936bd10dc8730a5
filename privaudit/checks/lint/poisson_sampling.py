"""Were batches really drawn by a coin for each record?"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import binom, binomtest, gamma

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, rule
from privaudit.statistics.comparisons import holm

COINS_LEVEL = 0.001
"""Chance that Poisson samples are called anything else, in a whole run, about."""

TESTS = 3
"""Of sizes, of inclusions, and of the share that batches hold."""

FEWEST = 10
"""Trials of a count that is tested: with one, its square says nothing of its own."""


@dataclass(frozen=True)
class Counts:
    """How often something happened, each a binomial count if sampling is Poisson.

    Attributes:
        rate: The chance of each, in (0, 1).
    """

    what: str
    counts: Int[np.ndarray, " n"]
    trials: Int[np.ndarray, " n"]
    rate: float

    def enough(self) -> "Counts":
        """Return those with trials enough to be tested."""
        testable = self.trials >= FEWEST
        return replace(self, counts=self.counts[testable], trials=self.trials[testable])

    def spread(self) -> float:
        """Return the mean squared distance from the expectation, over the variance.

        1 is expected of Poisson samples, about 0 of batches of a fixed size.
        """
        return float(self._squares().mean())

    def p_value(self) -> float:
        """Return how rare such a spread is among Poisson samples, two-sided.

        The sum of squares gets the scaled chi-square distribution that has its mean n
        and its variance, the sum of 2 + (1 / (p (1 - p)) - 6) / trials; both are exact.
        That is smooth, and counts are not: equal counts would look rarer than they are.
        So the lower tail is at least the exact chance that every count lies as close
        to its expectation as it does.
        """
        if len(self.counts) == 0:
            return 1.0
        total, mean = float(self._squares().sum()), float(len(self.counts))
        variance = (2 + (1 / (self.rate * (1 - self.rate)) - 6) / self.trials).sum()
        law = gamma(mean**2 / variance, scale=variance / mean)
        below = max(float(law.cdf(total)), self._all_as_close())
        return min(1.0, 2 * min(below, float(law.sf(total))))

    def could_tell(self) -> bool:
        """Say whether counts as equal as can be would have been found."""
        equal = np.rint(self.trials * self.rate).astype(np.int64)
        return replace(self, counts=equal).p_value() < COINS_LEVEL / TESTS

    def _squares(self) -> Float[np.ndarray, " n"]:
        variance = self.trials * self.rate * (1 - self.rate)
        return (self.counts - self.trials * self.rate) ** 2 / variance

    def _all_as_close(self) -> float:
        centre = self.trials * self.rate
        reach = np.abs(self.counts - centre) + 1e-9
        high = binom.cdf(np.floor(centre + reach), self.trials, self.rate)
        low = binom.cdf(np.ceil(centre - reach) - 1, self.trials, self.rate)
        return float(np.exp(np.log(high - low).sum()))


@rule
def poisson_sampling(evidence: Evidence) -> Found:
    """Were batches drawn by a coin for each record?"""
    rates = {
        event.sampling_rate
        for _, event in evidence.events()
        if event.sampling == "poisson" and event.noise_multiplier > 0
    }
    causes = evidence.setting("mode", "batch_size")
    if not rates:
        return
    if not any(notes.batches for _, _, notes in evidence.notes()):
        yield (
            "warning",
            "Whether samples were Poisson cannot be determined: the run holds no "
            "owner's trace of its batches.",
        )
    elif len(rates) > 1:
        yield "note", f"Samples of {len(rates)} rates are not tested."
    elif rates == {1.0}:
        yield from _whole_shards(evidence, causes)
    else:
        yield from _tested(evidence, rates.pop(), causes)


def _tested(evidence: Evidence, rate: float, causes: tuple[str, ...]) -> Found:
    sizes, inclusions = sizes_of(evidence, rate), inclusions_of(evidence, rate).enough()
    total, trials = int(sizes.counts.sum()), int(sizes.trials.sum())
    sizes = sizes.enough()
    share = float(binomtest(total, trials, rate).pvalue)
    p_values = holm([sizes.p_value(), inclusions.p_value(), share])
    for counts, p_value in zip((sizes, inclusions), p_values, strict=False):
        if p_value < COINS_LEVEL:
            yield (
                "error",
                f"{counts.what} spread {counts.spread():.3g} times as much as Poisson "
                f"samples at rate {rate:.3g} do (n = {len(counts.counts)}, adjusted "
                f"p = {p_value:.2g}): the accountant's amplification by sampling does "
                "not hold.",
                causes,
            )
    if p_values[2] < COINS_LEVEL:
        yield (
            "error",
            f"Batches hold {total} of {trials} records offered, a share of "
            f"{total / trials:.3g}, where the sampling rate is {rate:.3g} (adjusted "
            f"p = {p_values[2]:.2g}).",
            causes,
        )
    if not sizes.could_tell() and (p_values >= COINS_LEVEL).all():
        yield (
            "note",
            f"{len(sizes.counts)} batches from {FEWEST} records or more are too few to "
            "tell Poisson samples from batches of a fixed size.",
        )


def sizes_of(evidence: Evidence, rate: float) -> Counts:
    """Return the batches' sizes, each out of its client's records."""
    pairs = [
        (len(batch), notes.records)
        for _, _, notes in evidence.notes()
        for batch in notes.batches
    ]
    return _counts("Batch sizes", rate, pairs)


def inclusions_of(evidence: Evidence, rate: float) -> Counts:
    """Return how often each record was drawn, out of its client's batches."""
    drawn: dict[str, Counter[int]] = defaultdict(Counter)
    batches: Counter[str] = Counter()
    records: dict[str, int] = {}
    for _, client, notes in evidence.notes():
        records[client] = notes.records
        batches[client] += len(notes.batches)
        for batch in notes.batches:
            drawn[client].update(batch)
    pairs = [
        (drawn[client][record], batches[client])
        for client, count in records.items()
        for record in range(count)
    ]
    return _counts("Numbers of batches that a record is in", rate, pairs)


def _counts(what: str, rate: float, pairs: Sequence[tuple[int, int]]) -> Counts:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Counts(what, table[:, 0], table[:, 1], rate)


def _whole_shards(evidence: Evidence, causes: tuple[str, ...]) -> Found:
    """At rate 1 every batch holds every record."""
    short = [
        (index, client)
        for index, client, notes in evidence.notes()
        if any(len(batch) != notes.records for batch in notes.batches)
    ]
    if short:
        index, client = short[0]
        yield (
            "error",
            f"The sampling rate is 1, and {len(short)} clients' rounds left records "
            f"out (first: round {index}, {client}).",
            causes,
        )
