"""One question of the gate, and its answer: pass, regression or underpowered.

A rise is tested against the margin, a value against its limit: a limit is a margin of
(nearly) nothing around the limit. All questions share one Holm correction, so that the
chance of any false regression is at most alpha. To pass, an interval must exclude what
is bad; whoever relies on all passes at once errs no more often than with one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.checks.gate.shortfall import Shortfall
from privaudit.evaluation.metric import Side
from privaudit.statistics.change import (
    Change,
    Difference,
    IntervalAt,
    judge_changes,
)
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.power import enough_to_exclude
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling

Outcome = Literal["pass", "regression", "underpowered"]

_NOTHING = 1e-9  # a margin must be above 0


@dataclass(frozen=True)
class GateQuestion:
    """What is asked about one metric.

    Attributes:
        name: Such as "loss-threshold AUROC".
        about: A leak is worse where it is higher, a use where it is lower.
        setting: What draws the line, such as "margin" or "max_auroc".
        limit: The line: a margin where ``before`` is known, else a value.
        now: The run's value.
        before: The baseline's; None where the run is held to a value.
        interval_at: Of the change since the baseline, or of the run's value.
        note: Added to the sentence.
        sampling: Of a leak, how members were chosen: without a coin each, nothing is
            decided.
        stronger: Whether the attack was stronger than the baseline's: then a rise may
            be the attack's, and only a pass is decided.
    """

    name: str
    about: Side
    setting: str
    limit: float
    now: float
    before: float | None
    interval_at: IntervalAt
    note: str = ""
    sampling: Sampling = "coin"
    stronger: bool = False

    def worse_at(self, confidence: float) -> Estimate:
        """Return by how much it is worse: than before, or than the limit."""
        estimate = self.interval_at(confidence)
        if self.before is None and not estimate.unresolved:
            estimate = shifted(estimate, -self.limit)
        return estimate if self.about == "leak" else turned(estimate)

    @property
    def margin(self) -> float:
        """How much worse does not matter."""
        return _NOTHING if self.before is None else self.limit


@dataclass(frozen=True)
class GateCheck:
    """A question with its answer.

    Attributes:
        question: What was asked.
        outcome: "regression": worse beyond the line, after Holm. "pass": that is ruled
            out. "underpowered": neither, or no coin is declared that chose members.
        estimate: The change since the baseline, or the run's value.
        p_value: Of being no worse than the line, two-sided and after Holm; 1 where it
            is better.
        enough: The n that would decide in 80 of 100 comparisons; None where it is
            decided, the interval is unresolved, or no n would.
        sentence: What a developer reads, with the number, its interval and n.
    """

    question: GateQuestion
    outcome: Outcome
    estimate: Estimate
    p_value: float
    enough: int | None
    sentence: str

    @property
    def name(self) -> str:
        """Of what was asked about."""
        return self.question.name

    @property
    def setting(self) -> str:
        """What draws the line."""
        return self.question.setting

    @property
    def title(self) -> str:
        """What was asked, in a few words that no other check of a gate has."""
        kind = "limit" if self.question.before is None else "change"
        return f"{self.question.name}: {kind}"

    @property
    def rule(self) -> str:
        """What kind of question it was: a name for reports."""
        kind = "limit" if self.question.before is None else "change"
        return f"{self.question.about}-{kind}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        question = self.question
        return {
            "name": question.name,
            "about": question.about,
            "setting": question.setting,
            "limit": question.limit,
            "now": question.now,
            "before": question.before,
            "outcome": self.outcome,
            "estimate": self.estimate.to_dict(),
            "p_value": self.p_value,
            "enough": self.enough,
            "sentence": self.sentence,
        }


AnyCheck = GateCheck | GuaranteeCheck | Shortfall


def judge(questions: Sequence[GateQuestion], alpha: float = 0.05) -> list[GateCheck]:
    """Return the answers, in the order asked.

    Args:
        questions: All that are asked together: Holm counts them.
        alpha: The chance of any false regression, in (0, 1); intervals are two-sided
            at confidence ``1 - alpha``.

    Raises:
        ConfigError: ``alpha`` or a margin is out of range.
    """
    differences = [
        Difference(q.name, q.worse_at, q.margin, q.sampling) for q in questions
    ]
    return [
        _answer(question, change, alpha)
        for question, change in zip(
            questions, judge_changes(differences, alpha), strict=True
        )
    ]


def overall(checks: Iterable[AnyCheck]) -> Outcome:
    """Return the worst outcome: a regression, else what is not decided, else a pass."""
    outcomes = {check.outcome for check in checks}
    for outcome in ("regression", "underpowered"):
        if outcome in outcomes:
            return outcome
    return "pass"


def _answer(question: GateQuestion, change: Change, alpha: float) -> GateCheck:
    outcome: Outcome = "underpowered"
    if change.kind == "increase" and not question.stronger:  # of what is worse
        outcome = "regression"
    elif change.excludes_increase:
        outcome = "pass"
    enough, by_coin = None, question.sampling == "coin"
    open_by_records = by_coin and change.kind != "increase"
    if outcome == "underpowered" and open_by_records and not change.estimate.unresolved:
        enough = _enough(question, change.estimate)
    estimate = question.interval_at(1 - alpha)
    said = _SENTENCES[outcome](question, estimate, change.estimate)
    if enough is not None:
        said += (
            f" If {_guess(question, change.estimate)}, n = about {enough} would decide "
            f"in 80 of 100 comparisons, in place of {sum(estimate.n)}."
        )
    sentence = f"{outcome.capitalize()}: {said}{question.note}"
    if not by_coin:
        sentence = f"No verdict on membership: {said}{question.note} {UNKNOWN_SAMPLING}"
    p_value = change.p_within if change.estimate.value > 0 else 1.0
    return GateCheck(question, outcome, estimate, p_value, enough, sentence)


def _enough(question: GateQuestion, worse: Estimate) -> int:
    if question.before is not None and not worse.excludes(0):
        return enough_to_exclude(worse, question.margin, sides=1)
    apart = abs(worse.value - question.margin)
    least = question.limit / 100 or _NOTHING  # at the line no number decides
    return enough_to_exclude(worse, max(apart, least), sides=1)


def _guess(question: GateQuestion, worse: Estimate) -> str:
    if question.before is not None and not worse.excludes(0):
        return "nothing differs"
    return "it is as it looks"


def _values(question: GateQuestion) -> str:
    return f"({question.before:.3f} before, {question.now:.3f} now)"


def _said_regression(
    question: GateQuestion, estimate: Estimate, worse: Estimate
) -> str:
    if question.before is None:
        side = "above" if question.about == "leak" else "below"
        return f"{question.name} is {estimate}, {side} the limit of {question.limit:g}."
    verb = "rose" if question.about == "leak" else "fell"
    return (
        f"{question.name} {verb} beyond the margin of {question.limit:g}: it changed "
        f"by {estimate} {_values(question)}."
    )


def _said_pass(question: GateQuestion, estimate: Estimate, worse: Estimate) -> str:
    if question.before is None:
        side = "below" if question.about == "leak" else "above"
        return f"{question.name} is {estimate}, {side} the limit of {question.limit:g}."
    noun = "rise" if question.about == "leak" else "fall"
    return (
        f"a {noun} of {question.name} beyond the margin of {question.limit:g} is ruled "
        f"out: it changed by {estimate} {_values(question)}."
    )


def _said_undecided(question: GateQuestion, estimate: Estimate, worse: Estimate) -> str:
    if question.sampling != "coin":
        beyond = "and no verdict is given"
    elif question.stronger and worse.low > question.margin:
        beyond = "which is beyond it, but the attack was stronger than the baseline's"
    elif not worse.unresolved and worse.low > question.margin:
        beyond = "which is beyond it, but not after Holm's correction for all checks"
    elif question.before is not None and worse.low > 0:
        beyond = "which is not chance, but leaves it open"
    else:
        beyond = "which leaves it open"
    if question.before is None:
        side = "above" if question.about == "leak" else "below"
        return (
            f"whether {question.name} is {side} the limit of {question.limit:g} is not "
            f"decided: it is {estimate}, {beyond}."
        )
    verb = "rose" if question.about == "leak" else "fell"
    return (
        f"whether {question.name} {verb} beyond the margin of {question.limit:g} is "
        f"not decided: it changed by {estimate}, {beyond} {_values(question)}."
    )


_SENTENCES = {
    "regression": _said_regression,
    "pass": _said_pass,
    "underpowered": _said_undecided,
}


def shifted(estimate: Estimate, by: float) -> Estimate:
    """Return the estimate of a quantity plus a number."""
    value, low, high = (
        end + by for end in (estimate.value, estimate.low, estimate.high)
    )
    return replace(estimate, value=value, low=low, high=high)


def turned(estimate: Estimate) -> Estimate:
    """Return the estimate of a quantity with its sign turned."""
    return replace(
        estimate, value=-estimate.value, low=-estimate.high, high=-estimate.low
    )
