"""Scores of a run, held against coins that decided nothing: no attack can see them."""

from collections.abc import Sequence

from privaudit.auditing.attack import Scores, Target
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.core.seeds import Seeds
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import Run


def result_under_other_coins(
    run: Run, targets: Sequence[Target], scored: Sequence[Scores], seed: int
) -> AttackResult:
    """Return what RMIA's scores show of members that a coin of this seed names."""
    ledger = Ledger.toss(run.population.split, Seeds(seed))
    clients = []
    for target, scores in zip(targets, scored, strict=True):
        records = run.population.indices(target.client)
        clients.append(
            ClientScores(
                target.client,
                records,
                target.candidates.labels.numpy(),
                scores.scores,
                scores.guesses,
                ledger.is_member[records],
                scores.left_out,
            )
        )
    return evaluate_scores("rmia", "", "", clients)
