"""Success rate of an attack: the share of right guesses."""

from collections.abc import Sequence

import numpy as np

from privaudit.auditing.attack_result import ClientScores, clusters_of
from privaudit.evaluation.metric import METRICS, Metric, PairedNumbers
from privaudit.statistics.comparisons import paired_accuracy_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import sign_turned, success_rate


def _interval(clients: Sequence[ClientScores], confidence: float) -> Estimate:
    truth = np.concatenate([client.is_member for client in clients])
    guesses = np.concatenate([client.guesses for client in clients])
    return success_rate(truth, guesses, confidence, clusters_of(clients))


def _paired(
    first: Sequence[ClientScores], second: Sequence[ClientScores]
) -> PairedNumbers:
    correct, other_correct = (
        np.concatenate([client.guesses == client.is_member for client in clients])
        for clients in (first, second)
    )

    def interval_at(confidence: float) -> Estimate:
        return paired_accuracy_difference(
            correct, other_correct, confidence, clusters_of(first)
        ).estimate

    return PairedNumbers(
        float(correct.mean()), float(other_correct.mean()), interval_at
    )


SUCCESS = METRICS.register("success")(
    Metric(
        "success", "success rate", "leak", "success_plain", _interval, _paired,
        field="success", heading="Success", turn=sign_turned,
    )
)  # fmt: skip
