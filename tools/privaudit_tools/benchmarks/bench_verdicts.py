"""How often verdicts err, and what they find: an average alone, and with the tail beside it.

Run by ``make bench``; prints tables of docs/selftest.md. Permutations are fewer than an
audit's (a level is exact at any number of which 2.5 % are whole), so that power is rather
less than it is.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pytest
from scipy.special import ndtr

from privaudit.auditing.pooled_audit import of_method
from privaudit.statistics import membership_test
from privaudit.statistics.comparisons import independent_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.evidence import tail_bound, tail_plan, tail_rate, weigh
from privaudit.statistics.membership_test import ALPHA, Strata
from privaudit.statistics.roc import pooled_auroc
from privaudit.statistics.verdict import (
    LOOKS,
    Pooled,
    Verdict,
    as_tested,
    judge_leak,
)

Draw = Callable[[np.random.Generator], Strata]
KINDS = ("leaks", "no evidence", "underpowered", "reversed")
NULLS, AUDITS = 1000, 300


@pytest.fixture(autouse=True)
def fewer_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_test, "DRAWS", 199)


def audits_of(
    clients: Sequence[tuple[int, int]],
    share: float = 0.0,
    by: float = 0.0,
    shift: float = 0.0,
) -> Draw:
    """Return what draws normal scores of clients; a share of members scores ``by`` higher."""

    def draw(rng: np.random.Generator) -> Strata:
        strata = []
        for members, others in clients:
            is_member = np.arange(members + others) < members
            scores = rng.normal(size=len(is_member)) + shift * is_member
            scores[is_member] += by * (rng.random(members) < share)
            strata.append((scores, is_member))
        return strata

    return draw


def of_values(members: int, others: int, make: Callable[..., np.ndarray]) -> Draw:
    """Return what draws scores that tell nothing from a function."""

    def draw(rng: np.random.Generator) -> Strata:
        is_member = np.arange(members + others) < members
        return [(make(rng, members + others), is_member)]

    return draw


def _ones(rng: np.random.Generator, count: int) -> np.ndarray:
    return 1.0 * (rng.random(count) < 0.1)


def _saturated(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.maximum(rng.normal(size=count), 0.0)


def _groups(rng: np.random.Generator) -> Strata:
    """Groups of 1 to 6 like records share a coin: an audit counts their mean."""
    sizes = rng.integers(1, 7, 80)
    means = [np.mean(rng.normal() + 0.5 * rng.normal(size=size)) for size in sizes]
    return [(np.array(means), rng.random(80) < 0.5)]


def _alike(rng: np.random.Generator) -> Strata:
    """Ten copies of each record, each with a coin of its own."""
    return [(np.repeat(rng.normal(size=20), 10), rng.random(200) < 0.5)]


DESIGNS: Mapping[str, Draw] = {
    "10 + 10": audits_of([(10, 10)]),
    "100 + 100": audits_of([(100, 100)]),
    "100 + 50": audits_of([(100, 50)]),
    "100 + 20": audits_of([(100, 20)]),
    "20 + 100": audits_of([(20, 100)]),
    "100 + 5": audits_of([(100, 5)]),
    "20 + 400": audits_of([(20, 400)]),
    "5 + 100": audits_of([(5, 100)]),
    "ten clients of 2 + 40": audits_of([(2, 40)] * 10),
    "ten clients of 28 + 26": audits_of([(28, 26)] * 10),
    "unequal clients of 4 to 120": audits_of([(2, 2), (5, 8), (20, 10), (60, 60)]),
    "60 clients of 2 + 2": audits_of([(2, 2)] * 60),
    "0/1 scores, 100 + 10": of_values(100, 10, _ones),
    "0/1 scores, 60 + 60": of_values(60, 60, _ones),
    "half of all tied, 100 + 100": of_values(100, 100, _saturated),
    "groups with one coin": _groups,
    "ten copies of each record": _alike,
}
TEN = [(28, 26)] * 10
LEAKS: Mapping[str, tuple[float, float, float]] = {
    "none": (0, 0, 0),
    "2 % + 6": (0.02, 6, 0),
    "3 % + 6": (0.03, 6, 0),
    "5 % + 6": (0.05, 6, 0),
    "shift 0.2": (0, 0, 0.2),
    "shift 0.3": (0, 0, 0.3),
}


def judged(strata: Strata) -> tuple[Verdict, Verdict]:
    """Return the verdict by the AUROC's interval alone, and that of an audit."""
    groups = [(s[t], s[~t]) for s, t in strata]
    test = membership_test.membership_test(strata)
    auroc = pooled_auroc(groups, is_tested=True)
    now = judge_leak(as_tested(auroc, test), evidence=weigh(test, strata))
    return judge_leak(pooled_auroc(groups)), now


def most_of(count: int) -> float:
    """Return the nominal rate and four standard errors: by chance beyond in 1 of 30,000."""
    return float(ALPHA + 4 * np.sqrt(ALPHA * (1 - ALPHA) / count))


def test_nulls() -> None:
    """Of 100 audits of noise, how many "leak" on average, in the tail, and by both."""
    highest = []
    print(f"\n| {NULLS} nulls | average | tail | either |\n|---|---|---|---|")
    for number, (name, draw) in enumerate(DESIGNS.items()):
        rng = np.random.default_rng([1, number])
        found = [membership_test.membership_test(draw(rng)) for _ in range(NULLS)]
        rates = [
            float(np.mean([getattr(one, part) <= ALPHA for one in found]))
            for part in ("average", "tail", "either")
        ]
        shown = " | ".join(f"{rate:.1%}" for rate in rates)
        print(f"| {name} | {shown} |", flush=True)
        highest.append(max(rates))
    assert max(highest) <= most_of(NULLS)


def test_one_audit_of_ten_clients() -> None:
    """Verdicts per 100 audits of 280 + 260, by the AUROC alone and now."""
    print("\n| leak | by the AUROC alone: " + " / ".join(KINDS) + " | now |")
    print("|---|---|---|")
    for number, (name, leak) in enumerate(LEAKS.items()):
        rng, draw = np.random.default_rng([2, number]), audits_of(TEN, *leak)
        _print_verdicts(name, [judged(draw(rng)) for _ in range(AUDITS)])


@pytest.mark.parametrize("count", [30, 20])
def test_some_certain_members_of_a_thousand(count: int) -> None:
    """The first of 1,000 members score 8 higher; 1,000 others do not."""
    rng, found, named = np.random.default_rng([3, count]), [], 0
    for _ in range(AUDITS):
        ((scores, is_member),) = audits_of([(1000, 1000)])(rng)
        scores[:count] += 8
        found.append(judged([(scores, is_member)]))
        named += "tail" in found[-1][1].parts
    print(f"\n{count} of 1,000 members + 8; the tail is named in {named} of {AUDITS}")
    print("| leak | by the AUROC alone: " + " / ".join(KINDS) + " | now |")
    _print_verdicts(f"{count / 1000:.0%} + 8", found)


def _print_verdicts(name: str, found: Sequence[tuple[Verdict, Verdict]]) -> None:
    cells = []
    for before_or_now in zip(*found, strict=True):
        kinds = Counter(one.kind for one in before_or_now)
        cells.append(" / ".join(f"{100 * kinds[k] / len(found):.0f}" for k in KINDS))
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def test_the_tail_s_bound() -> None:
    """How often it lies below the truth of the worst curve: a step at the true quantile."""
    print("\n| others | FPR | misses, of 100,000 audits | nominal 2.5 % |")
    print("|---|---|---|---|")
    rng = np.random.default_rng(4)
    for size, fpr in ((100, 0.01), (256, 0.01), (1000, 0.01), (1000, 0.001)):
        plan = tail_plan(size, size, 0.05, fpr, ALPHA)
        share = 0.05  # of members, all of them at the true threshold
        beyond = rng.beta(plan.order, size - plan.order + 1, 100_000) < fpr
        called = np.where(beyond, 0, rng.binomial(size, share, 100_000))
        bounds = np.array(
            [
                tail_bound(x, plan.order, (size, size), fpr, ALPHA)
                for x in range(size + 1)
            ]
        )
        print(f"| {size} | {fpr:g} | {np.mean(bounds[called] < share):.2%} | |")


TRAINING = [(28, 26)] * 2  # small: a look is one in 160 of its permutations or of 480
SEQUENCES, DRAWS_OF_A_LOOK = 1000, 479
OF_A_LOOK = Pooled(1, True).share


def judged_so_far(strata: Strata, trainings: int) -> Verdict:
    """Return the verdict at a look."""
    test = membership_test.membership_test(strata)
    auroc = as_tested(pooled_auroc([(s[t], s[~t]) for s, t in strata]), test)
    evidence = weigh(test, strata, alpha=ALPHA / OF_A_LOOK)
    return judge_leak(auroc, evidence=evidence, pooled=Pooled(trainings, True))


def sequence(draw: Draw, rng: np.random.Generator) -> list[Verdict]:
    """Return the verdicts of trainings until one decides, at most six."""
    strata: list[tuple[np.ndarray, np.ndarray]] = []
    found: list[Verdict] = []
    while len(found) < LOOKS and (not found or found[-1].kind == "underpowered"):
        strata += draw(rng)
        found.append(judged_so_far(strata, len(found) + 1))
    return found


def test_nulls_of_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 sequences of noise, how many "leak" at any of six looks, whatever came before."""
    monkeypatch.setattr(membership_test, "DRAWS", DRAWS_OF_A_LOOK)
    print(f"\n| {SEQUENCES} sequences | at any look | at the last |\n|---|---|---|")
    highest = []
    designs = {
        "two clients of 28 + 26": audits_of(TRAINING),
        "one of 40 + 4": audits_of([(40, 4)]),
        "0/1 scores, 30 + 30": of_values(30, 30, _ones),
    }
    for number, (name, draw) in enumerate(designs.items()):
        rng, any_look, last = np.random.default_rng([4, number]), 0, 0
        for _ in range(SEQUENCES):
            strata: list[tuple[np.ndarray, np.ndarray]] = []
            leaks = []
            for _ in range(LOOKS):
                strata += draw(rng)
                test = membership_test.membership_test(strata)
                leaks.append(test.either <= ALPHA / OF_A_LOOK)
            any_look, last = any_look + any(leaks), last + leaks[-1]
        highest.append(any_look / SEQUENCES)
        print(f"| {name} | {highest[-1]:.1%} | {last / SEQUENCES:.1%} |")
    assert max(highest) <= most_of(SEQUENCES)


def test_looks_until_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts and trainings per sequence of trainings of 280 + 260."""
    monkeypatch.setattr(membership_test, "DRAWS", DRAWS_OF_A_LOOK)
    print("\n| leak | " + " / ".join(KINDS) + " | trainings |")
    print("|---|---|---|")
    for number, (name, leak) in enumerate(LEAKS.items()):
        rng, draw = np.random.default_rng([5, number]), audits_of(TEN, *leak)
        found = [sequence(draw, rng) for _ in range(AUDITS // 3)]
        counts = Counter(str(one[-1].kind) for one in found)
        rates = " / ".join(f"{counts[k] / len(found):.0%}" for k in KINDS)
        print(f"| {name} | {rates} | {np.mean([len(one) for one in found]):.1f} |")


@pytest.mark.parametrize("recurring", [0.0, 0.8])
@pytest.mark.parametrize("spread", [0.0, 0.04])
def test_intervals_of_pools(recurring: float, spread: float) -> None:
    """Misses of four trainings' intervals: of these records' and of the method's AUROC.

    Records are hard or easy in all trainings alike (``recurring``); the shift of
    trainings varies.
    """
    missed = np.zeros(4)
    shift, rng = (
        0.25,
        np.random.default_rng([6, int(10 * recurring), int(100 * spread)]),
    )
    each = shift * (1 + recurring * np.array([-1, 1]))
    truth = float(ndtr(each / np.sqrt(2)).mean())
    for _ in range(SEQUENCES):
        own, groups, clusters, values = rng.normal(size=540), [], [], []
        vulnerable = rng.integers(0, 2, 540)
        for _ in range(4):
            is_member = rng.random(540) < 0.5
            by = shift + rng.normal() * spread * np.sqrt(4 * np.pi)
            each = by * (1 + recurring * (2 * vulnerable - 1))
            noise = recurring * own + np.sqrt(1 - recurring**2) * rng.normal(size=540)
            scores, records = noise + each * is_member, np.arange(540)
            groups.append((scores[is_member], scores[~is_member]))
            clusters.append((records[is_member], records[~is_member]))
            values.append(pooled_auroc(groups[-1:]).value)
        these = pooled_auroc(groups, clusters=clusters)
        method = of_method(these, values)
        for place, one in enumerate((these, method)):
            missed[2 * place] += one.low > truth
            missed[2 * place + 1] += one.high < truth
    rates = ", ".join(f"{rate:.1%}" for rate in missed / SEQUENCES)
    print(f"\nrecurring {recurring:g}, spread {spread:g}: these, method: {rates}")


Curve = Callable[[np.random.Generator, int], np.ndarray]
SHARE = 0.1  # of members that stand out


def _steps_at(place: float) -> Curve:
    return lambda rng, n: np.where(rng.random(n) < SHARE, place, 0.0)


CURVES: Mapping[str, tuple[float, Curve]] = {
    "chance": (0.01, lambda rng, n: rng.random(n)),
    "step above": (SHARE, _steps_at(0.99 + 1e-9)),
    "step below": (0.0, _steps_at(0.99 - 1e-9)),
    "certain": (SHARE + 0.009, lambda rng, n: rng.random(n) + (rng.random(n) < SHARE)),
}
"""The rate that is true at 1 % of others, which are uniform, and how members are drawn."""


def test_the_rate_of_the_tail() -> None:
    """How often its ends miss, and how often a rise as large as the margin is called larger."""
    print(
        f"\n| {NULLS} audits | curve | low > truth | high < truth |\n|---|---|---|---|"
    )
    highest = []
    sizes = [(100, 100), (1000, 1000), (1000, 50), (50, 1000), (400, 20)]
    for number, (members, others) in enumerate(sizes):
        for name, (truth, draw) in CURVES.items():
            rng, low, high = np.random.default_rng([5, number]), 0, 0
            for _ in range(NULLS):
                found = tail_rate(_of(draw(rng, members), rng.random(others)))
                low, high = low + (found.low > truth), high + (found.high < truth)
            shown = f"{low / NULLS:.1%} | {high / NULLS:.1%}"
            print(f"| {members} + {others} | {name} | {shown} |", flush=True)
            highest.append(max(low, high) / NULLS)
    assert max(highest) <= most_of(NULLS)


def test_the_rise_of_a_tail() -> None:
    """Two models of other records, one of which tells 5 % more members: the margin."""
    rng, called, passed = np.random.default_rng(6), 0, 0
    for _ in range(AUDITS):
        first, second = (
            partial(
                _rate_at,
                _of(rng.random(1000) + (rng.random(1000) < share), rng.random(1000)),
            )
            for share in (0.05, 0.0)
        )
        found = independent_difference(first, second)
        called, passed = called + (found.low > 0.05), passed + (found.high < 0.05)
    print(
        f"\nof {AUDITS}: larger {called / AUDITS:.1%}, ruled out {passed / AUDITS:.1%}"
    )


def _rate_at(strata: Strata, confidence: float) -> Estimate:
    return tail_rate(strata, confidence=confidence)


def _of(members: np.ndarray, others: np.ndarray) -> Strata:
    scores = np.concatenate([members, others])
    return [(scores, np.arange(len(scores)) < len(members))]
