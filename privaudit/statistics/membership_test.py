"""Whether scores hold anything of membership: a permutation test in two parts.

Given how many members each stratum has (a client; of several trainings, a client in one of
them), membership is a random assignment, by a coin for each record as by a random split of
a fixed size. So permuting it within strata is exact for any statistic, whatever ties there
are, whichever shadow models the adversary trained, and whatever records resemble others.

Two parts are named beforehand. The average: members' ranks within their stratum, which is
the AUROC averaged by pairs. The tail: whether the highest scores are members' more often
than their share, which a few memorised records show and an AUROC hides. Either counts, by
one p-value for both.

Source: the tail: Berk and Jones, "Goodness-of-fit test statistics that dominate the
Kolmogorov statistics", Zeitschrift fuer Wahrscheinlichkeitstheorie 47, 1979; that the draw
itself counts: Phipson and Smyth, "Permutation p-values should never be zero", Statistical
Applications in Genetics and Molecular Biology 9, 2010; fewer draws: Besag and Clifford,
"Sequential Monte Carlo p-values", Biometrika 78, 1991; which part is named: closed testing
after Marcus, Peritz and Gabriel, Biometrika 63, 1976.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from privaudit.core.errors import ConfigError
from privaudit.statistics.roc import mean_ranks

ALPHA = 0.025
"""One-sided: of a false "leaks"."""
DRAWS, FEWER_DRAWS, LARGE = 9_999, 999, 20_000
"""Permutations, and how many of more records than that if one of them says as much."""
_WEIGHTS = 0.6, 0.4  # of the average and of the tail
_TOP = 0.1  # share of the records that a tail may be
_CELLS = 2_000_000  # labels in memory at a time
_KEPT = 8_000  # records of which all labels are kept, as bits: 10 MB
_DIGITS = 9  # of a gain: equal ones must count as equal, whatever rounding made them

# Without names for lengths: each stratum has its own.
Strata = Sequence[tuple[Float[np.ndarray, " _"], Bool[np.ndarray, " _"]]]
"""Each stratum's scores, and which of them are members'."""
Labels = Bool[np.ndarray, "draws records"]


@dataclass(frozen=True)
class MembershipTest:
    """One-sided p-values, and where the tail stands out most.

    Attributes:
        either: Of both parts together: what decides.
        average: Of the AUROC alone.
        tail: Of the highest scores alone.
        top: How many of how many highest are members, where that says most.
    """

    either: float
    average: float
    tail: float
    top: tuple[int, int]

    def parts(self, alpha: float = ALPHA) -> tuple[str, ...]:
        """Return which parts stand out; at least one if ``either`` is at most alpha."""
        if self.either > alpha:
            return ()
        parts = {"average": self.average, "tail": self.tail}
        return tuple(name for name, p in parts.items() if p <= alpha)


def membership_test(strata: Strata, seed: int = 0) -> MembershipTest:
    """Return the test of strata that have members and others, each at least one.

    "Leaks" if ``either`` is at most :data:`ALPHA`. The same seed gives the same p-values. The
    least is 1 / (DRAWS + 1): beyond 250 audits of a run nothing is called a leak.

    Example:
        >>> scores, is_member = np.arange(12.0), np.arange(12) >= 6
        >>> found = membership_test([(scores, is_member)])
        >>> found.average < 0.005, found.top
        (True, (2, 2))
    """
    if not strata:
        raise ConfigError("A test of membership needs a stratum of both kinds.")
    truth = [np.asarray(is_member, bool) for _, is_member in strata]
    label = np.concatenate(truth)
    # Twice mid-ranks are whole, and their sums are, up to 2**24: no rounding parts ties.
    ranks = np.concatenate([2 * mean_ranks(np.asarray(s)) for s, _ in strata])
    ranks = ranks.astype(np.float32 if len(label) <= 4_000 else np.float64)
    rate = np.repeat([t.mean() for t in truth], [len(t) for t in truth])
    tails = [_Tail.of(key, rate) for key in orders([s for s, _ in strata])]
    average, tail = [ranks[label].sum(keepdims=True)], [_gains(tails, label[None])]
    kept = tuple(t.tobytes() for t in truth) if len(label) <= _KEPT else ()
    rng, made = np.random.default_rng(seed), 0
    for draws in (DRAWS,) if len(label) <= LARGE else (FEWER_DRAWS, DRAWS):
        more = _draws(truth, draws - made, rng)
        if kept:
            bits = _kept_draws(kept, draws, seed)
            more = (np.unpackbits(b, 1, len(label)).view(bool) for b in bits)
        for drawn in more:
            average.append(drawn @ ranks)
            tail.append(_gains(tails, drawn))
        p_average, p_tail = (_p_values(np.concatenate(one)) for one in (average, tail))
        least = np.minimum(p_average / _WEIGHTS[0], p_tail / _WEIGHTS[1])
        as_much, made = least <= least[0] + 1e-12, draws
        if as_much.sum() > 1:  # else more would say how small it is
            break
    either = float(as_much.mean())
    largest = max(tails, key=lambda one: float(one.gains(label[None]).max()))
    return MembershipTest(
        either, float(p_average[0]), float(p_tail[0]), largest.most(label)
    )


def orders(
    scores: Sequence[Float[np.ndarray, " _"]],
) -> list[Float[np.ndarray, " records"]]:
    """Return the keys by which records of all strata are held to one threshold.

    The scores themselves, and less their stratum's median in units of its quartiles:
    strata whose models differ hide a tail from the first, a score with few large values
    from the second. With one stratum they are the same order.
    """
    raw = [np.asarray(one, np.float64) for one in scores]
    if len(raw) == 1:
        return raw
    return [np.concatenate(raw), np.concatenate([_standard(one) for one in raw])]


def _standard(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    low, middle, high = np.quantile(scores, (0.25, 0.5, 0.75))
    spread = high - low or np.abs(scores - middle).mean() or 1.0
    return np.asarray((scores - middle) / spread)


@dataclass(frozen=True)
class _Tail:
    """The top tenth by one key; groups of ties stay whole, the first however large.

    Attributes:
        records: Its records in order.
        ends: How many are at or above each distinct key.
        expected: The share of members among those if membership is chance.
    """

    records: Int[np.ndarray, " top"]
    ends: Int[np.ndarray, " ends"]
    expected: Float[np.ndarray, " ends"]

    @classmethod
    def of(
        cls, key: Float[np.ndarray, " records"], rate: Float[np.ndarray, " records"]
    ) -> "_Tail":
        order = np.argsort(-key, kind="stable")
        ends = np.flatnonzero(np.append(np.diff(key[order]) != 0, True)) + 1
        is_top = ends <= math.ceil(_TOP * len(key))
        is_top[0] = True
        ends = ends[is_top]
        records = order[: ends[-1]]
        return cls(records, ends, np.cumsum(rate[records])[ends - 1] / ends)

    def gains(self, labels: Labels) -> Float[np.ndarray, "draws ends"]:
        """Return Berk and Jones' statistic of each top: 0 with fewer members than expected."""
        found = labels.take(self.records, 1).cumsum(1).take(self.ends - 1, axis=1)
        if len(found) <= self.ends[-1]:
            return self._gains(found)
        of_counts = self._gains(np.arange(self.ends[-1] + 1)[:, None])
        return of_counts[found, np.arange(len(self.ends))]

    def _gains(self, found: Int[np.ndarray, "#n #ends"]) -> Float[np.ndarray, "n ends"]:
        share, few = found / self.ends, 1e-12
        others, rest = np.maximum(1 - share, few), np.maximum(1 - self.expected, few)
        information = share * np.log(np.maximum(share, few) / self.expected)
        information += (1 - share) * np.log(others / rest)
        return np.where(share > self.expected, self.ends * information, 0.0)

    def most(self, label: Bool[np.ndarray, " records"]) -> tuple[int, int]:
        """Return how many of how many highest are members where the gain is largest."""
        count = int(self.ends[int(self.gains(label[None]).argmax())])
        return int(label[self.records[:count]].sum()), count


def _gains(tails: Sequence[_Tail], labels: Labels) -> Float[np.ndarray, " draws"]:
    largest = np.max([tail.gains(labels).max(axis=1) for tail in tails], axis=0)
    return np.round(largest, _DIGITS)


def _draws(
    truth: Sequence[Bool[np.ndarray, " _"]], draws: int, rng: np.random.Generator
) -> Iterator[Labels]:
    """Yield so many permutations, as many at a time as memory holds."""
    step = max(1, _CELLS // sum(map(len, truth)))
    for start in range(0, draws, step):
        yield _drawn(truth, min(step, draws - start), rng)


@lru_cache(maxsize=4)
def _kept_draws(
    truth: tuple[bytes, ...], draws: int, seed: int
) -> Sequence[UInt8[np.ndarray, "draws bytes"]]:
    """Return the same as bits, kept: all attacks of an audit permute the same members."""
    known, rng = [np.frombuffer(o, bool) for o in truth], np.random.default_rng(seed)
    return [np.packbits(drawn, axis=1) for drawn in _draws(known, draws, rng)]


def _drawn(
    truth: Sequence[Bool[np.ndarray, " _"]], rows: int, rng: np.random.Generator
) -> Labels:
    """Return membership drawn anew within strata: those with the smallest of uniform numbers.

    Of 32 bits, so that one draw in a million has a tie at its last member, and one more.
    """
    drawn = []
    for one in truth:
        size, members = len(one), int(one.sum())
        number = rng.integers(0, 2**32, (rows, size), np.uint32)
        last = np.partition(number, members - 1, axis=1)[:, members - 1]
        drawn.append(number <= last[:, None])
    return np.concatenate(drawn, axis=1)


def _p_values(statistic: Float[np.ndarray, " draws"]) -> Float[np.ndarray, " draws"]:
    """Return for each draw the share of all that are at least as large."""
    ordered = np.sort(statistic)
    at_least = len(statistic) - np.searchsorted(ordered, statistic, "left")
    return at_least / len(statistic)
