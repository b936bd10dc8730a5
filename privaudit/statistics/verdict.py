"""Verdicts on an AUROC, and how many more trainings or records would decide."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field
from scipy.special import expit, logit, ndtr, ndtri

from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.formatting import percent, write_time
from privaudit.core.parameters import to_plain
from privaudit.statistics.estimate import Estimate, normal_quantile
from privaudit.statistics.evidence import LIMITS, Limits, MembershipEvidence, tail_plan
from privaudit.statistics.membership_test import ALPHA, MembershipTest

_POWER = 0.8  # as usual
_MOST_TRAININGS = 128
LOOKS = 6
"""At pooled trainings, one after another, that are planned where a verdict may end them."""
_OF_A_LOOK = 4
"""Each such look has this part of the error. A sixth is not needed: looks at the same
trainings agree. Pocock's bounds for an average alone have a 3.5th; the tests of tails agree
less. tools/privaudit_tools/benchmarks/bench_verdicts.py counts the errors."""
_ABOVE = math.nextafter(0.5, 1)


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number that holds, in (low, high] or ``low`` if it is 1."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def enough_to_exclude(estimate: Estimate, margin: float, *, sides: int = 2) -> int:
    """Return the n in all at which an interval like this one would exclude a margin.

    If the truth is 0, in 80 % of audits. The width is taken to fall with
    the root of n. Rounded up to two digits.

    Args:
        estimate: Of a difference, with an interval of some width.
        margin: The smallest difference that matters, above 0.
        sides: 2: the interval is to lie within -margin and margin; 1: below margin, or
            above -margin.

    Example:
        >>> wide = Estimate(0.02, -0.08, 0.12, (100, 100), "made up")
        >>> enough_to_exclude(wide, 0.05)
        2200
    """
    if margin <= 0 or estimate.unresolved:
        raise ConfigError(
            f"No number of records excludes a margin of {margin} around {estimate}. "
            "Give a margin above 0, and an interval."
        )
    quantile = normal_quantile(estimate.confidence)
    error = (estimate.high - estimate.low) / (2 * quantile)
    share = _POWER if sides == 1 else (1 + _POWER) / 2
    exact = sum(estimate.n) * (error * (quantile + float(ndtri(share))) / margin) ** 2
    exact = max(exact, 1.0)
    digit = 10 ** max(math.floor(math.log10(exact)) - 1, 0)
    return math.ceil(exact / digit) * digit


Sampling = Literal["coin", "split", "population", "unknown"]
"""How members were chosen: by an independent fair coin each; as a random part of fixed
size; as a random sample of a population, of which others are one, too; or nobody says how."""
ASSIGNED: tuple[Sampling, ...] = ("coin", "split")
"""Those draws that decide of each record who is a member: permuting it is exact then. Of
samples records are independent at best, and the interval decides, which knows clusters."""

_TURNED = (
    "lies below 0.5: members have the lower scores. The direction was named beforehand, "
    "so this is no all-clear, but a finding to look into. Turn the sign of a signal "
    "that is low for members, such as a loss; a sign turned because of this number is "
    "tested on other records."
)
_ALONE = (
    " Had this been the run's only audit, it would say “leaks”, as the best of five "
    "that find nothing does in 12 % of runs; a plan before training keeps other audits "
    "from hiding a leak."
)
UNKNOWN_SAMPLING = (
    "Whether that is membership cannot be said: nobody declares that a fair coin chose "
    "each member, so members and non-members may differ without any training."
)


VerdictKind = Literal[
    "leaks", "reversed", "no evidence", "underpowered", "sampling unknown"
]
"""The code of a verdict: see :class:`Verdict`."""


@dataclass(frozen=True)
class Pooled:
    """Whose scores a verdict is on: of trainings with fresh coins each, as one audit.

    Attributes:
        trainings: At least 1.
        is_sequential: Whether a verdict may end the trainings: so that :data:`LOOKS` are
            planned, and any wrong one is as likely as of a single look.
    """

    trainings: Annotated[int, Field(ge=1)] = 1
    is_sequential: bool = False

    @property
    def share(self) -> int:
        """What part of the error a look has: one in so many."""
        return _OF_A_LOOK if self.is_sequential else 1


ONE_TRAINING = Pooled()


@dataclass(frozen=True)
class Verdict:
    """A judgement on an attack, and the numbers that its sentence is made of.

    Attributes:
        kind: "leaks": members score higher than chance allows, on average or in the
            tail. "reversed": members score *lower* than chance allows. "no evidence":
            neither, and a leak beyond the limits would have been seen. "underpowered":
            none of these can be said. "sampling unknown": the number stands, and nothing
            is said of membership.
        auroc: As it was found, with the interval of a single audit.
        limits: As in :func:`judge_leak`, and so ``audits``, ``evidence`` and ``pooled``.
    """

    kind: VerdictKind
    auroc: Estimate
    limits: Limits = LIMITS
    audits: int = 1
    evidence: MembershipEvidence | None = None
    pooled: Pooled = ONE_TRAINING

    @property
    def share(self) -> int:
        """What part of the error that one audit may make it may: one in so many."""
        return self.audits * self.pooled.share

    @property
    def parts(self) -> tuple[str, ...]:
        """What leaks: "average", "tail", or both; of an AUROC alone the average."""
        if self.kind != "leaks":
            return ()
        test, alpha = self.test, ALPHA / self.share
        return ("average",) if test is None else test.parts(alpha)

    @property
    def test(self) -> MembershipTest | None:
        """Of membership; None where none was made."""
        return self.evidence.test if self.evidence else None

    @property
    def tail_bound(self) -> float | None:
        """What share of members may be told at the limits' rate; None of an AUROC alone."""
        if self.evidence is None:
            return None
        return self.evidence.bound(self.limits.fpr, ALPHA / self.share)

    @property
    def trainings(self) -> int | None:
        """How many trainings in all, pooled, would decide where nothing leaks.

        In 80 of 100 cases, at least: what the AUROC and the tail leave open is added up.
        Widths are taken to fall with the root of n, in the present proportions. Whoever
        saw the verdict on one training pools it at half of the error. None
        where nothing is open, no interval is, or that many would not do.
        """
        if self.kind != "underpowered" or self.auroc.unresolved:
            return None
        least, most = self.pooled.trainings, 2 * self.pooled.trainings
        while most <= max(_MOST_TRAININGS, 2 * least):
            if self._chance(most) >= _POWER:
                low = max(most // 2, least)
                return _smallest(lambda n: self._chance(n) >= _POWER, low, most)
            most *= 2
        return None

    @property
    def further(self) -> int | None:
        """How many of those :attr:`trainings` are still to be made."""
        return self.trainings and self.trainings - self.pooled.trainings

    def _chance(self, count: int) -> float:
        """Return how often so many trainings rule both limits out if nothing leaks."""
        seen_alone = self.pooled == ONE_TRAINING
        auroc, alpha = self.auroc, ALPHA / (self.share + seen_alone)
        trainings = count / self.pooled.trainings
        error = (auroc.high - auroc.low) / 2 / normal_quantile(auroc.confidence)
        apart = self.limits.margin * math.sqrt(trainings) / max(error, 1e-9)
        average = float(ndtr(apart + ndtri(alpha)))
        if self.evidence is None or average < _POWER:
            return average
        members, others = (int(size * trainings) for size in self.evidence.sizes)
        limits = self.limits.tail_margin, self.limits.fpr
        return average + tail_plan(members, others, *limits, alpha).chance - 1

    @property
    def sentence(self) -> str:
        """The judgement with the number, its interval and n."""
        return self.said()

    def said(self, seconds: float = 0.0) -> str:
        """Return the sentence; a training takes so many seconds, 0 if nobody knows."""
        found = self.auroc
        if self.kind == "sampling unknown":
            return f"No verdict on membership: AUROC {found}. {UNKNOWN_SAMPLING}"
        if found.unresolved:
            return f"Undecided: AUROC {found}."
        auroc, shown = _corrected(found, self.share), f"AUROC {found}"
        if self.test:
            auroc = as_tested(auroc, self.test)
        if self.share > 1:
            counted = f"{self.audits} audits of the run" * (self.audits > 1)
            looks = f"{LOOKS} looks" * self.pooled.is_sequential
            shown += (
                f", corrected for {' and '.join(filter(None, [counted, looks]))} "
                f"[{auroc.low:.3f}, {auroc.high:.3f}]"
            )
        if self.kind == "leaks":
            return f"{self._leaks(shown)}."
        if self.kind == "reversed":
            return f"Separates, with the sign turned: {shown}, {_TURNED}"
        by_itself = _kind(found, self.limits, self.pooled.share, self.evidence)
        alone = _ALONE * (self.audits > 1 and by_itself == "leaks")
        if self.kind == "no evidence":
            of = " on average" * (self.evidence is None)
            return f"No evidence of a leak{of}: {self._ruled_out(auroc, shown)}.{alone}"
        return f"Undecided: {self._open(auroc, shown)}{self._more(seconds)}.{alone}"

    def _leaks(self, shown: str) -> str:
        if self.test is None:
            return f"Leaks: {shown}, lies above 0.5"
        top = top_of(self.test)
        chance = f"p = {self.test.either:.2g}"
        if self.parts == ("tail",):
            return f"Leaks in the tail: {top} ({chance}); {shown}"
        beside = f"; {top}" if "tail" in self.parts else ""
        return f"Leaks: {shown}, lies above 0.5 ({chance}){beside}"

    def _ruled_out(self, auroc: Estimate, shown: str) -> str:
        limit = 0.5 + self.limits.margin
        both = "0.5 and " * (auroc.low <= 0.5)
        said = f"{shown}, includes {both}nothing above {limit:g}"
        if self.tail_bound is not None:
            rate, most = percent(self.limits.fpr), percent(self.limits.tail_margin)
            said += (
                f"; at most {self.tail_bound:.1%} of members are told at {rate} false "
                f"alarms, within {most}"
            )
        if 1 - auroc.low > limit:
            said += (
                f"; with the sign turned, up to {1 - auroc.low:.3f} is not ruled out"
            )
        return said

    def _open(self, auroc: Estimate, shown: str) -> str:
        limit, bound = 0.5 + self.limits.margin, self.tail_bound
        said = f"{shown}, includes both 0.5 and values above {limit:g}"
        if auroc.low > 0.5:
            said = f"{shown}, lies above 0.5, but not once the tail is tested beside it"
        elif auroc.high <= limit:
            said = f"no evidence on average ({shown}, nothing above {limit:g})"
        if bound is None or bound <= self.limits.tail_margin:
            return said
        rate, most = percent(self.limits.fpr), percent(self.limits.tail_margin)
        return (
            f"{said}; that {bound:.1%} of members are told at {rate} false alarms is not "
            f"ruled out ({most} would have to be)"
        )

    def _more(self, seconds: float) -> str:
        """Say what would decide if nothing leaks, in trainings, records and time."""
        if self.trainings is None:
            return ""
        more = self.further or 0
        count = sum(self.auroc.n) * self.trainings // self.pooled.trainings
        takes = f", {write_time(more * seconds)}" * bool(seconds)
        return (
            f"; about {more} more training{'s' * (more > 1)} like it, pooled (n = {count} "
            f"in all{takes}), decide in 80 of 100 cases if nothing leaks"
        )

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return code and numbers for audit.json, where the AUROC stands beside them."""
        return {
            "kind": self.kind,
            **asdict(self.limits),
            "audits": self.audits,
            "evidence": to_plain(MembershipEvidence | None, self.evidence),
            **({"pooled": vars(self.pooled)} if self.pooled != ONE_TRAINING else {}),
        }


def judge_leak(
    auroc: Estimate,
    limits: Limits = LIMITS,
    sampling: Sampling = "coin",
    audits: int = 1,
    evidence: MembershipEvidence | None = None,
    pooled: Pooled = ONE_TRAINING,
) -> Verdict:
    """Return whether an attack tells members from non-members.

    "leaks" is what a permutation test of membership says, by an average and a tail that
    were named beforehand, or the interval where no draw assigned members: a run that
    cannot leak is called so in at most 2.5 % of audits.
    "no evidence" needs that an AUROC beyond the margin is ruled out, and a rate of the
    tail beyond its own. An interval wholly below 0.5 is "reversed": the scores do tell
    members, who have the lower ones. That is a sign to turn, as of a loss, or chance in
    as many audits; in no case is it an all-clear. "no evidence" is about the direction
    that was named; the sentence says what turned scores may reach, where that would matter.

    Args:
        auroc: Of an attack whose direction was fixed beforehand.
        limits: What does not matter.
        sampling: How members were chosen. Where it is unknown, the two groups may
            differ from the start, and no verdict is given.
        audits: How many there were to choose from, at least 1: each is held to as small
            a share of the error that one may make.
        evidence: What the scores say (:func:`privaudit.statistics.evidence.weigh`). Of an
            AUROC alone the interval decides, and nothing is said of the tail.
        pooled: How many trainings the scores are of, and whether a verdict may end them.

    Example:
        >>> print(judge_leak(Estimate(0.531, 0.502, 0.560, (640, 640), "AUROC")))
        Leaks: AUROC 0.531 [0.502, 0.560], n = 640 + 640, lies above 0.5.
    """
    if sampling not in get_args(Sampling):
        raise UnknownNameError("sampling", sampling, get_args(Sampling))
    kind: VerdictKind = "sampling unknown"
    if sampling != "unknown":
        kind = _kind(auroc, limits, audits * pooled.share, evidence)
    return Verdict(kind, auroc, limits, audits, evidence, pooled)


def _kind(
    found: Estimate, limits: Limits, audits: int, evidence: MembershipEvidence | None
) -> VerdictKind:
    if found.unresolved:
        return "underpowered"
    auroc, alpha = _corrected(found, audits), ALPHA / audits
    test = evidence.test if evidence else None
    if auroc.low > 0.5 if test is None else test.either <= alpha:
        return "leaks"
    if auroc.high < 0.5:
        return "reversed"
    is_small = auroc.high <= 0.5 + limits.margin
    if evidence is not None:
        is_small &= evidence.bound(limits.fpr, alpha) <= limits.tail_margin
    return "no evidence" if is_small else "underpowered"


def top_of(test: MembershipTest) -> str:
    """Say how many of how many highest scores are members'."""
    members, count = test.top
    return f"{members} of the {count} highest scores are members'"


def as_tested(auroc: Estimate, test: MembershipTest) -> Estimate:
    """Return an AUROC whose interval lies above 0.5 just where the test of the average says so.

    Example:
        >>> found = MembershipTest(0.04, 0.03, 0.5, (3, 5))
        >>> print(as_tested(Estimate(0.57, 0.501, 0.63, (100, 100), "AUROC"), found))
        0.570 [0.500, 0.630], n = 100 + 100
    """
    if auroc.unresolved:
        return auroc
    is_above = test.average <= (1 - auroc.confidence) / 2
    low = max(auroc.low, _ABOVE) if is_above else min(auroc.low, 0.5)
    return replace(auroc, low=min(low, auroc.value))


def _corrected(auroc: Estimate, audits: int) -> Estimate:
    """Return an AUROC with an interval that holds for so many audits at once."""
    if audits == 1 or auroc.unresolved:
        return auroc
    return at_confidence(auroc, 1 - (1 - auroc.confidence) / audits)


def at_confidence(auroc: Estimate, confidence: float) -> Estimate:
    """Return an AUROC, or another share, of resolved interval at another confidence.

    The interval is taken to be symmetrical on the logit scale, as that of
    :func:`privaudit.statistics.roc.pooled_auroc` is; at 0 and 1 it is the exact one.

    Example:
        >>> print(at_confidence(Estimate(0.6, 0.5, 0.6923, (50, 50), "AUROC"), 0.99))
        0.600 [0.468, 0.719], n = 50 + 50
    """
    if auroc.value in (0, 1):
        power = math.log((1 - confidence) / 2) / math.log((1 - auroc.confidence) / 2)
        ends = [auroc.low**power, 1 - (1 - auroc.high) ** power]
    else:
        scale = normal_quantile(confidence) / normal_quantile(auroc.confidence)
        centre = logit(auroc.value)
        shifts = logit(np.array([auroc.low, auroc.high])) - centre
        ends = expit(centre + scale * shifts).tolist()
    low, high = min(ends[0], auroc.value), max(ends[1], auroc.value)
    return replace(auroc, low=low, high=high, confidence=confidence)
