"""Rules of sampling: were records and clients drawn, at the rate that is counted on?

Only what clients sent shows who took part. Whoever is drawn at random is in two rounds
together as often as two draws are: taking turns, a fixed few, or equal counts for all
are not that.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import binom, binomtest, gamma

from privaudit.checks.lint.evidence import Evidence, Found, rule
from privaudit.privacy.events import MechanismEvent
from privaudit.statistics.comparisons import holm

COINS_LEVEL = 0.001
"""Chance that Poisson samples are called anything else, in a whole run, about."""

TESTS = 3
"""Of sizes, of inclusions, and of the share that batches hold."""

FEWEST = 10
"""Trials of a count that is tested: with one, its square says nothing of its own."""


@dataclass(frozen=True)
class Counts:
    """How often something happened, each a binomial count if sampling is Poisson."""

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

    def share(self) -> float:
        """Return how rare the number of all is, two-sided."""
        total, trials = int(self.counts.sum()), int(self.trials.sum())
        return float(binomtest(total, trials, self.rate).pvalue)

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
    if not rates or evidence.engines:  # each engine's own lots are tested
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
    share, sizes = sizes.share(), sizes.enough()
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


LEVEL = 1e-6
"""Chance that clients drawn as declared are called anything else, in a whole run."""
FARTHEST = 100  # rounds apart that are compared
Sets = Mapping[int, Set[object]]


@rule
def clients_as_drawn(evidence: Evidence) -> Found:
    """Were the clients of each round drawn, at the rate that is counted on?"""
    events = {i: e for i, e in _drawn(evidence) if i in evidence.participants}
    if not events:
        return
    clients = len(evidence.members)
    sets = {index: {*evidence.participants[index]} for index in events}
    causes = evidence.setting("participation")
    sentences = [*_too_many(events, sets, clients), *_in_a_pattern(sets, clients)]
    for sentence in sentences:
        yield "error", sentence, causes
    if evidence.is_declared and not sentences:
        turns = _taking_turns(sets, clients)
        if not any(_in_a_pattern(turns, clients)):
            yield (
                "note",
                f"{len(sets)} rounds are too few to tell clients that were drawn from "
                "clients that take turns.",
            )


def _drawn(evidence: Evidence) -> Iterator[tuple[int, MechanismEvent]]:
    """Yield the mechanisms whose epsilon counts on a draw of clients."""
    for index, event in evidence.events():
        by_coins = event.sampling == "poisson" and event.unit == "client"
        by_client = event.sampling == "without-replacement" or by_coins
        if event.noise_multiplier > 0 and event.sampling_rate < 1 and by_client:
            yield index, event


def _too_many(
    events: Mapping[int, MechanismEvent], sets: Sets, clients: int
) -> Iterator[str]:
    """Say where more took part than the rate lets in."""
    fixed = [i for i, e in events.items() if e.sampling == "without-replacement"]
    over = [
        i
        for i in fixed
        if len(sets[i]) > clients * events[i].sampling_rate * (1 + 1e-6)
    ]
    if over:
        rate = events[over[0]].sampling_rate
        yield (
            f"{len(sets[over[0]])} of {clients} clients took part in round {over[0]}, and "
            f"the accountant counts on {rate:.3g} of them ({len(over)} rounds so)."
        )
    tossed = [i for i in events if i not in fixed]
    if tossed:
        rate = max(events[i].sampling_rate for i in tossed)
        took, trials = sum(len(sets[i]) for i in tossed), clients * len(tossed)
        if binom.sf(took - 1, trials, rate) < LEVEL:
            yield (
                f"{took} of {trials} times a client took part, a share of "
                f"{took / trials:.3g}, and the accountant counts on {rate:.3g}."
            )


def _in_a_pattern(sets: Sets, clients: int) -> Iterator[str]:
    """Say where rounds share clients more or less often than independent draws do."""
    rounds = sorted(sets)
    lags = range(1, min(len(rounds) - 1, FARTHEST) + 1)
    for lag in lags:
        pairs = [(sets[i], sets[j]) for i, j in zip(rounds, rounds[lag:], strict=False)]
        shared = sum(len(one & other) for one, other in pairs)
        draws = sum(len(other) for _, other in pairs)
        expected = sum(len(one) * len(other) / clients for one, other in pairs)
        if chernoff(shared, draws, expected) * 2 * (len(lags) + 1) < LEVEL:
            yield (
                f"Rounds {lag} apart share {shared} clients, and {expected:.3g} are "
                f"expected of {len(pairs)} pairs of independent draws: the clients were "
                "not drawn at random, so drawing them hides nobody."
            )
            return
    counts = Counter(client for some in sets.values() for client in some)
    chance = _as_equal(list(counts.values()), [len(sets[i]) for i in rounds], clients)
    if chance * (len(lags) + 1) < LEVEL:
        yield (
            f"All {clients} clients took part {min(counts.values())} to "
            f"{max(counts.values())} times in {len(rounds)} rounds, which draws give in "
            f"{chance:.2g} of all cases: they were not drawn independently in each round."
        )


def chernoff(found: int, draws: int, expected: float) -> float:
    """Bound how rare a sum of overlaps is, on the side of its expectation it lies on.

    A draw without replacement, given the other, is hypergeometric, and spreads no more
    than coins of the same chance do: exp(-n KL(found / n, expected / n)).

    Source: Hoeffding, "Probability inequalities for sums of bounded random variables",
    1963, theorems 1 and 4.

    Example:
        >>> round(chernoff(10, 10, 5.0), 6)
        0.000977
    """
    if not draws or not 0 < expected < draws:
        return 1.0
    share, chance = found / draws, expected / draws
    parts = ((share, chance), (1 - share, 1 - chance))
    return math.exp(-draws * sum(a * math.log(a / b) for a, b in parts if a))


def _as_equal(counts: Sequence[int], sizes: Sequence[int], clients: int) -> float:
    """Return how rare counts are that differ by one at most; 1 for all others.

    By the local limit at its mode: of counts that sum up to what they must, each of
    variance sum p (1 - p) K / (K - 1).
    """
    if len(counts) < clients or max(counts) - min(counts) > 1 or clients < 3:
        return 1.0
    spread = sum(size / clients * (1 - size / clients) for size in sizes)
    spread *= clients / (clients - 1)
    if spread < 1:
        return 1.0
    ways = math.log(math.comb(clients, sum(counts) % clients) * math.sqrt(clients))
    return math.exp(min(0.0, ways - math.log(2 * math.pi * spread) * (clients - 1) / 2))


def _taking_turns(sets: Sets, clients: int) -> Sets:
    """Return what rounds of the same sizes would be if clients took turns."""
    turns, first = {}, 0
    for index in sorted(sets):
        turns[index] = {(first + n) % clients for n in range(len(sets[index]))}
        first += len(sets[index])
    return turns
