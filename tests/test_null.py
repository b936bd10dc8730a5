"""Audits of a model that no record has touched: how often do they cry wolf?"""

import numpy as np
import pytest

from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.core.seeds import Seeds
from privaudit.datasets.partition import Dirichlet
from privaudit.datasets.split import SplitSizes, split_records
from privaudit.federated.runs.config import make_config
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.population import populate

AUDITS = 200


@pytest.mark.slow
def test_200_audits_of_zero_shot_runs_give_few_false_alarms() -> None:
    """Partition and coin are drawn anew; real pictures, real scores, no training.

    "leaks" needs the whole two-sided 95 % interval above 0.5: nominally 2.5 %.
    """
    population = populate(make_config("zero-shot"))
    records, task = population.records, population.task
    answers = task.logit_scale * records.features @ task.zero_shot.T
    likely = answers.log_softmax(dim=-1).gather(1, records.labels[:, None])[:, 0]
    labels, scores = records.labels.numpy(), likely.double().numpy()
    alarms, covered = 0, 0
    for seed in range(AUDITS):
        clients = _clients(labels, scores, Seeds(seed))
        leak = evaluate_scores("loss-threshold", "", "", clients)
        alarms += leak.verdict.kind == "leaks"
        covered += leak.auroc.low <= 0.5 <= leak.auroc.high
    error = np.sqrt(0.05 * 0.95 / AUDITS)
    assert alarms / AUDITS <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / AUDITS)
    assert covered / AUDITS >= 0.95 - 3 * error


def _clients(
    labels: np.ndarray, scores: np.ndarray, seeds: Seeds
) -> list[ClientScores]:
    split = split_records(
        labels,
        Dirichlet(10.0),
        SplitSizes(),
        clients=10,
        seeds=seeds,
    )
    ledger = Ledger.toss(split, seeds)
    found = []
    for number in range(10):
        mine = split.of(number)
        high = scores[mine] > np.median(scores[mine])
        truth = ledger.is_member[mine]
        found.append(
            ClientScores(
                f"client-{number}", mine, labels[mine], scores[mine], high, truth
            )
        )
    return found
