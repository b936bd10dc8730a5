"""Were the clients of each round drawn, at the rate that the accountant counts on?

Only what they sent shows it. Whoever is drawn at random is in two rounds together as
often as two draws are: taking turns, a fixed few, or equal counts for all are not that.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from scipy.stats import binom

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, rule
from privaudit.privacy.events import MechanismEvent

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
    turns = _taking_turns(sets, clients)
    if (
        evidence.is_declared
        and not sentences
        and not any(_in_a_pattern(turns, clients))
    ):
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
