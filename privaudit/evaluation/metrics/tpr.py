"""Share of members that are told at 1 % false alarms: the verdict's tail, at any n.

Pages' true-positive rate is another number: by ranks within clients, and only where there
are enough non-members.
"""

from collections.abc import Sequence
from functools import partial

from privaudit.auditing.attack_result import ClientScores, in_strata
from privaudit.evaluation.metric import METRICS, Metric, PairedNumbers
from privaudit.statistics.comparisons import independent_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.evidence import tail_rate


def _interval(clients: Sequence[ClientScores], confidence: float) -> Estimate:
    return tail_rate(*in_strata(clients), confidence=confidence)


def _paired(
    first: Sequence[ClientScores], second: Sequence[ClientScores]
) -> PairedNumbers:
    """Return both and their difference, as if of other records: rather too wide."""
    ours, theirs = (partial(_interval, clients) for clients in (first, second))
    values = ours(0.95).value, theirs(0.95).value
    return PairedNumbers(*values, partial(independent_difference, ours, theirs))


TPR = METRICS.register("tpr")(
    Metric(
        "tpr", "share told at 1 % false alarms", "leak", "", _interval, _paired, field="tpr"
    )
)  # fmt: skip
