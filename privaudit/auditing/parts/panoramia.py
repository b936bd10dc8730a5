"""Where no coin chose the members: what the trained models tell beyond a baseline.

Two classifiers tell members from others, each fitted to some of them and asked about the
rest. The baseline knows a record's client, class and score under the model before
training; the other also its score under the model that the scenario shows. What both
find is a difference between the records; what the second finds beyond it may be
membership, but only if training sharpens no difference that was there.

Source: Kazmi et al., "PANORAMIA: privacy auditing of machine learning models without
retraining", NeurIPS 2024, definitions 3 and 4 and propositions 1 and 2. There others are
generated records, and the baseline is a network on the records themselves; here they are
the non-members that there are, or what somebody generated and entered as such. As there,
the difference of the two bounds is a measure of leakage, and no bound on epsilon: the
baseline's is a bound from below.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit_part import AuditPart
from privaudit.auditing.parts.untrained_control import (
    attack_untrained,
    can_attack_untrained,
)
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.statistics.comparisons import paired_auroc_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import clopper_pearson
from privaudit.statistics.roc import auroc

FOLDS = 5
GUESSED = 0.1  # share of the records that are called members: the likeliest ones


@dataclass(frozen=True)
class BeyondBaseline:
    """What two classifiers tell of members, without and with the trained models.

    Attributes:
        baseline: AUROC of the one that knows no trained model.
        with_model: AUROC of the other.
        gain: The latter less the former, paired by record.
        baseline_bound: Logarithm of the odds of its likeliest members to be some, beyond
            those of all records, from below at 97.5 %.
        bound: The same of the other.
        excess: The latter less the former, at least 0; a measure, and no bound.
    """

    baseline: Estimate
    with_model: Estimate
    gain: Estimate
    baseline_bound: float
    bound: float
    excess: float


def beyond_baseline(before: AttackResult, after: AttackResult) -> BeyondBaseline | None:
    """Return what scores after training tell beyond scores before; None for too few."""
    order = _order(before)
    truth = np.concatenate([client.is_member for client in before.clients])[order]
    if min(truth.sum(), (~truth).sum()) < FOLDS:
        return None
    known = _inputs(before, order)
    after_scores = np.concatenate([client.scores for client in after.clients])
    scores = _standard(after_scores[order])
    return compared(known, np.column_stack([known, scores]), truth)


def compared(
    known: Float[np.ndarray, "records inputs"],
    with_model: Float[np.ndarray, "records more"],
    truth: Bool[np.ndarray, " records"],
) -> BeyondBaseline:
    """Return what a classifier on some inputs finds beyond one on others."""
    plain, full = _cross_fitted(known, truth), _cross_fitted(with_model, truth)
    least, bound = odds_bound(plain, truth), odds_bound(full, truth)
    return BeyondBaseline(
        auroc(plain[truth], plain[~truth]),
        auroc(full[truth], full[~truth]),
        paired_auroc_difference(full, plain, truth).estimate,
        least,
        bound,
        max(bound - least, 0.0),
    )


def odds_bound(
    scores: Float[np.ndarray, " records"],
    truth: Bool[np.ndarray, " records"],
    share: float = GUESSED,
) -> float:
    """Return how far the odds of the likeliest members exceed those of all, from below.

    If members are drawn with e^c times the density of others at most, a guess is right
    with odds of e^c times theirs at most, so that the number of right ones is bounded by
    a binomial one. Of records whose scores tie at the last guess, as many count as
    right as a draw among them would find on average, rounded down: where a record
    stands says nothing.

    Args:
        scores: Higher is more likely a member, of a classifier that saw other records.
        truth: Who is one.
        share: Of the records that are guessed to be members.

    Returns:
        The largest c that 97.5 % of such numbers exclude, in nats, at least 0.
    """
    count = max(1, round(share * len(scores)))
    cut = np.sort(scores)[-count]
    above, tied = scores > cut, scores == cut
    drawn = int(count - above.sum())  # of the tied ones
    hits = int(truth[above].sum())
    right = float(hits + drawn * int(truth[tied].sum()) // int(tied.sum()))
    low = float(clopper_pearson(np.array([right]), count, 0.95)[0][0])
    odds = truth.sum() / (~truth).sum()
    return max(math.log(low / (1 - low) / odds), 0.0) if 0 < low < 1 else 0.0


def _order(result: AttackResult) -> Int[np.ndarray, " records"]:
    """Return an order of all records that depends on nothing but which they are."""
    records = np.concatenate([client.records for client in result.clients])
    by_name = np.lexsort((records, _clients(result)))
    return by_name[np.random.default_rng(0).permutation(len(by_name))]


def _clients(result: AttackResult) -> Int[np.ndarray, " records"]:
    """Return each record's client, numbered by name."""
    names = [client.client for client in result.clients]
    numbers = np.unique(names, return_inverse=True)[1]
    return np.repeat(numbers, [len(client.records) for client in result.clients])


def _inputs(
    before: AttackResult, order: Int[np.ndarray, " records"]
) -> Float[np.ndarray, "records inputs"]:
    labels = np.concatenate([client.labels for client in before.clients])[order]
    scores = np.concatenate([client.scores for client in before.clients])[order]
    classes = np.unique(labels, return_inverse=True)[1]
    clients = _clients(before)[order]
    columns = [np.eye(int(part.max()) + 1)[part] for part in (classes, clients)]
    return np.column_stack([*columns, _standard(scores)])


def _standard(
    scores: Float[np.ndarray, " records"],
) -> Float[np.ndarray, " records"]:
    return (scores - scores.mean()) / max(float(scores.std()), 1e-12)


def _cross_fitted(
    inputs: Float[np.ndarray, "records inputs"], truth: Bool[np.ndarray, " records"]
) -> Float[np.ndarray, " records"]:
    from sklearn.linear_model import LogisticRegression  # takes half a second
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=1000)
    scores: Float[np.ndarray, " records"] = cross_val_predict(
        model, inputs, truth, cv=folds, method="decision_function"
    )
    return scores.round(9)  # equal records tie, whatever the order of sums


def _compute(played: PlayedScenario) -> BeyondBaseline | None:
    _, before, after = attack_untrained(played)
    return beyond_baseline(before, after)


PANORAMIA = AuditPart(
    "panoramia",
    BeyondBaseline | None,
    applies=can_attack_untrained,
    compute=_compute,
    nothing=None,
    title="Beyond a baseline without the trained models",
)
