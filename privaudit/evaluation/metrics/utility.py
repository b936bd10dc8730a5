"""Utility: what the clients' models score on test records of their own classes."""

import numpy as np

from privaudit.evaluation.compare.measured import TestScores
from privaudit.evaluation.metric import METRICS, Metric, PairedNumbers
from privaudit.runs.utility import mean_accuracy
from privaudit.statistics.comparisons import paired_accuracy_difference
from privaudit.statistics.estimate import Estimate


def _interval(tests: TestScores, confidence: float) -> Estimate:
    return mean_accuracy(tests.scores, tests.own, confidence)


def _paired(first: TestScores, second: TestScores) -> PairedNumbers:
    differences, own_mask = first.scores - second.scores, first.own

    def interval_at(confidence: float) -> Estimate:
        if (differences == 0).all():  # the linearised interval would have no width
            same = np.ones(own_mask.any(axis=0).sum(), bool)
            return paired_accuracy_difference(same, same, confidence).estimate
        return mean_accuracy(differences, own_mask, confidence)

    value, other = (mean_accuracy(t.scores, own_mask).value for t in (first, second))
    return PairedNumbers(value, other, interval_at)


UTILITY = METRICS.register("utility")(
    Metric("utility", "on own classes", "utility", "local", _interval, _paired)
)
