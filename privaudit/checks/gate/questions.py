"""What the gate asks of a run's audit, alone or beside another's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from privaudit.auditing.attack_result import ClientScores, leak_auroc
from privaudit.checks.gate.checks import GateQuestion
from privaudit.checks.gate.settings import GateSettings
from privaudit.evaluation.compare.comparable import TestScores
from privaudit.evaluation.compare.paired_metrics import Measured
from privaudit.federated.runs.utility import mean_accuracy
from privaudit.statistics.change import IntervalAt
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.guesses import success_rate
from privaudit.statistics.roc import sign_turned
from privaudit.statistics.verdict import Sampling


def auroc_at(clients: Sequence[ClientScores]) -> IntervalAt:
    """Return an attack's AUROC, averaged over clients by pairs, at any confidence."""
    return partial(leak_auroc, clients)


def success_at(clients: Sequence[ClientScores]) -> IntervalAt:
    """Return an attack's share of right guesses at any confidence."""
    truth = np.concatenate([client.is_member for client in clients])
    guesses = np.concatenate([client.guesses for client in clients])
    return partial(success_rate, truth, guesses)


def utility_at(tests: TestScores) -> IntervalAt:
    """Return the utility on the clients' own classes at any confidence."""
    return partial(mean_accuracy, tests.scores, tests.own)


def changes(
    measured: Sequence[Measured], settings: GateSettings
) -> Iterator[GateQuestion]:
    """Yield a question for each paired metric that is asked for."""
    for one in measured:
        is_leak = one.about == "leak"
        yield GateQuestion(
            name=one.name,
            about=one.about,
            setting="margin" if is_leak else "utility_margin",
            limit=settings.margin if is_leak else settings.utility_margin,
            now=one.first,
            before=one.second,
            interval_at=one.interval_at,
            note=TURNED_SIDES[one.turned],
        )


def leak_limit(
    name: str, interval_at: IntervalAt, limit: float, setting: str = "max_auroc"
) -> GateQuestion:
    """Return the question whether a leak is above a limit.

    Args:
        name: Of the metric.
        interval_at: Of an AUROC or a success rate: 0.5 by chance.
        limit: In [0, 1]. Where the sign of the scores is what keeps the metric below
            it, the question is about what the turned scores give: an adversary who
            sees that members have the lower ones turns them.
        setting: What draws the line.
    """
    estimate, note = interval_at(0.95), ""
    if not estimate.unresolved and estimate.high <= limit < 1 - estimate.low:
        interval_at, note = partial(turned_at, interval_at), _TURNED
        estimate = interval_at(0.95)
    return GateQuestion(
        name, "leak", setting, limit, estimate.value, None, interval_at, note
    )


_TURNED = " Members have the lower scores; that is the number with their sign turned."
TURNED_SIDES: Mapping[tuple[bool, bool], str] = {
    (False, False): "",
    (True, False): _TURNED.replace("scores;", "scores now;"),
    (False, True): _TURNED.replace("scores;", "scores in the baseline;"),
    (True, True): " Members have the lower scores in both, whose sign is turned here.",
}


def turned_at(interval_at: IntervalAt, confidence: float) -> Estimate:
    """Return the AUROC of the scores with their sign turned."""
    return sign_turned(interval_at(confidence))


def use_limit(
    name: str, interval_at: IntervalAt, limit: float, setting: str = "min_utility"
) -> GateQuestion:
    """Return the question whether utility is below a limit."""
    value = interval_at(0.95).value
    return GateQuestion(name, "use", setting, limit, value, None, interval_at)


def as_sampled(question: GateQuestion, sampling: Sampling) -> GateQuestion:
    """Return the question; of a leak, it is answered only if a coin chose members."""
    if question.about == "use" or sampling == "coin":
        return question
    return replace(question, sampling=sampling)


def use_name(metric: str) -> str:
    """Return what utility is called: "accuracy on own classes"."""
    return f"{metric} on own classes"
