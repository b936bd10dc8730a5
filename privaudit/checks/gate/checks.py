"""Questions of the gate, and their answers: pass, regression, or what is open.

A rise is tested against the margin, a value against its limit: a limit is a margin of
(nearly) nothing around the limit. All questions share one Holm correction, so that the
chance of any false regression is at most alpha. To pass, an interval must exclude what
is bad; whoever relies on all passes at once errs no more often than with one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.strength import Shortfall
from privaudit.core.formatting import outcome_in_words
from privaudit.evaluation.compare.measured import Measured
from privaudit.evaluation.metric import Metric, Side
from privaudit.statistics.comparisons import (
    Change,
    Difference,
    IntervalAt,
    judge_changes,
)
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling, enough_to_exclude

Outcome = Literal[
    "pass", "regression", "rose, size open", "fell, size open", "underpowered"
]

_NOTHING = 1e-9  # a margin must be above 0


@dataclass(frozen=True)
class GateQuestion:
    """What is asked about one metric.

    Attributes:
        name: Such as "loss-threshold AUROC".
        setting: What draws the line, such as "margin" or "max_auroc".
        limit: The line: a margin where ``before`` is known, else a value.
        before: The baseline's; None where the run is held to a value.
        interval_at: Of the change since the baseline, or of the run's value.
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
        outcome: "regression": worse beyond the line, after Holm. "pass": that is ruled
            out. "rose, size open", of utility "fell": worse, after Holm, and whether
            beyond the line is open. "underpowered": none of these, or no coin is
            declared that chose members.
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
    def kind(self) -> Literal["limit", "change"]:
        """Whether a value was held to a limit, or a change to a margin."""
        return "limit" if self.question.before is None else "change"

    @property
    def title(self) -> str:
        """What was asked, in a few words that no other check of a gate has."""
        return f"{self.question.name}: {self.kind}"

    @property
    def rule(self) -> str:
        """What kind of question it was: a name for reports."""
        return f"{self.question.about}-{self.kind}"

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
    judged = judge_changes(differences, alpha)
    return [_answer(q, one, alpha) for q, one in zip(questions, judged, strict=True)]


def overall(checks: Iterable[AnyCheck]) -> Outcome:
    """Return the worst: a regression, else what is worse, or not decided, else a pass."""
    outcomes = {check.outcome for check in checks}
    worst_first: tuple[Outcome, ...] = get_args(Outcome)[1:]
    return next((one for one in worst_first if one in outcomes), "pass")


def _answer(question: GateQuestion, change: Change, alpha: float) -> GateCheck:
    outcome: Outcome = "underpowered"
    is_change, is_known = question.before is not None, not question.stronger
    if change.kind == "increase" and is_known:  # of what is worse
        outcome = "regression"
    elif change.excludes_increase:
        outcome = "pass"
    elif change.kind == "rose, size open" and is_change and is_known:
        outcome = "rose, size open" if question.about == "leak" else "fell, size open"
    enough, by_chance = None, question.sampling != "unknown"
    open_by_records = by_chance and change.kind != "increase"
    decided = outcome in ("pass", "regression")
    if not decided and open_by_records and not change.estimate.unresolved:
        enough = _enough(question, change.estimate)
    estimate = question.interval_at(1 - alpha)
    said = _said(question, outcome, estimate, change.estimate)
    if enough is not None:
        same = question.before is not None and not change.estimate.excludes(0)
        guess = "nothing differs" if same else "it is as it looks"
        said += (
            f" If {guess}, n = about {enough} would decide in 80 of 100 comparisons, in "
            f"place of {sum(estimate.n)}."
        )
    sentence = f"{outcome_in_words(outcome).capitalize()}: {said}{question.note}"
    if not by_chance:
        sentence = f"No verdict on membership: {said}{question.note} {UNKNOWN_SAMPLING}"
    p_value = change.p_within if change.estimate.value > 0 else 1.0
    return GateCheck(question, outcome, estimate, p_value, enough, sentence)


def _enough(question: GateQuestion, worse: Estimate) -> int:
    if question.before is not None and not worse.excludes(0):
        return enough_to_exclude(worse, question.margin, sides=1)
    apart = abs(worse.value - question.margin)
    least = question.limit / 100 or _NOTHING  # at the line no number decides
    return enough_to_exclude(worse, max(apart, least), sides=1)


_WORDS = {
    "leak": ("above", "below", "rose", "rise"),
    "utility": ("below", "above", "fell", "fall"),
}
"""The bad side of a limit, the good one, and what is worse as a verb and as a noun."""


def _said(
    question: GateQuestion, outcome: Outcome, estimate: Estimate, worse: Estimate
) -> str:
    """Say the answer, with the number and its interval."""
    name, line = question.name, f"{question.limit:g}"
    bad, good, verb, noun = _WORDS[question.about]
    beyond = _beyond(question, worse)
    if question.before is None:
        if outcome == "underpowered":
            return (
                f"whether {name} is {bad} the limit of {line} is not decided: it is "
                f"{estimate}, {beyond}."
            )
        side = bad if outcome == "regression" else good
        return f"{name} is {estimate}, {side} the limit of {line}."
    said = {
        "regression": f"{name} {verb} beyond the margin of {line}",
        "pass": f"a {noun} of {name} beyond the margin of {line} is ruled out",
        "underpowered": f"whether {name} {verb} beyond the margin of {line} is not decided",
    }.get(outcome, f"{name} {verb}, and whether beyond the margin of {line} is open")
    left = f", {beyond}" if outcome == "underpowered" else ""
    values = f"({question.before:.3f} before, {question.now:.3f} now)"
    return f"{said}: it changed by {estimate}{left} {values}."


def _beyond(question: GateQuestion, worse: Estimate) -> str:
    """Say why an estimate leaves a question open."""
    if question.sampling == "unknown":
        return "and no verdict is given"
    if question.stronger and worse.low > question.margin:
        return "which is beyond it, but the attack was stronger than the baseline's"
    if not worse.unresolved and worse.low > question.margin:
        return "which is beyond it, but not after Holm's correction for all checks"
    if question.before is not None and worse.low > 0:
        return "which is not chance, but leaves it open"
    return "which leaves it open"


def shifted(estimate: Estimate, by: float) -> Estimate:
    """Return the estimate of a quantity plus a number."""
    value, low, high = estimate.value + by, estimate.low + by, estimate.high + by
    return replace(estimate, value=value, low=low, high=high)


def turned(estimate: Estimate) -> Estimate:
    """Return the estimate of a quantity with its sign turned."""
    return replace(
        estimate, value=-estimate.value, low=-estimate.high, high=-estimate.low
    )


def changes(
    measured: Sequence[Measured], settings: GateSettings
) -> Iterator[GateQuestion]:
    """Yield a question for each paired metric that is asked for."""
    for one in measured:
        setting, margin = margin_of(one.metric, settings)
        yield GateQuestion(
            name=one.name,
            about=one.about,
            setting=setting,
            limit=margin,
            now=one.numbers.first,
            before=one.numbers.second,
            interval_at=one.numbers.interval_at,
            note=TURNED_SIDES[one.numbers.turned],
        )


def margin_of(metric: Metric[Any], settings: GateSettings) -> tuple[str, float]:
    """Return the margin of a metric's side, the setting's name first."""
    setting = "margin" if metric.side == "leak" else "utility_margin"
    return setting, getattr(settings, setting)


def limited(
    metric: Metric[Any], of: str, scores: Any, limit: float, setting: str
) -> GateQuestion:
    """Return the question whether a leak is above a limit, or a use below it.

    Where members have the lower scores, the question is about what the turned ones give:
    an adversary who sees that turns them.
    """
    interval_at, note = metric.at(scores), ""
    estimate = interval_at(0.95)
    if metric.turn is not None and not estimate.unresolved:
        turned = metric.turn(estimate)
        if estimate.value < turned.value:
            interval_at = partial(turned_at, metric, interval_at)
            estimate, note = turned, _TURNED.format("")
    return GateQuestion(
        metric.name(of), metric.side, setting, limit, estimate.value, None,
        interval_at, note,
    )  # fmt: skip


_TURNED = " Members have the lower scores{}; that is the number with their sign turned."
TURNED_SIDES: Mapping[tuple[bool, bool], str] = {
    (False, False): "",
    (True, False): _TURNED.format(" now"),
    (False, True): _TURNED.format(" in the baseline"),
    (True, True): " Members have the lower scores in both, whose sign is turned here.",
}


def turned_at(
    metric: Metric[Any], interval_at: IntervalAt, confidence: float
) -> Estimate:
    """Return what the scores give with their sign turned."""
    assert metric.turn is not None
    return metric.turn(interval_at(confidence))


def as_sampled(question: GateQuestion, sampling: Sampling) -> GateQuestion:
    """Return the question; of a leak, it is answered only if a coin chose members."""
    if question.about == "utility" or sampling != "unknown":
        return question
    return replace(question, sampling=sampling)
