"""Questions of the gate about a run's audit, alone or beside another's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from privaudit.checks.gate.checks import GateQuestion
from privaudit.checks.gate.settings import GateSettings
from privaudit.evaluation.compare.measured import Measured
from privaudit.evaluation.metric import Metric
from privaudit.statistics.change import IntervalAt
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Sampling


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

    Where the sign of the scores is what keeps a leak below the limit, in [0, 1], the
    question is about what the turned scores give: an adversary who sees that members
    have the lower ones turns them.
    """
    interval_at, note = metric.at(scores), ""
    estimate = interval_at(0.95)
    if metric.turn is not None and not estimate.unresolved:
        turned = metric.turn(estimate)
        if estimate.high <= limit < turned.high:
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
    if question.about == "use" or sampling == "coin":
        return question
    return replace(question, sampling=sampling)
