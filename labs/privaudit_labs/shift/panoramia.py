"""PANORAMIA, where no coin chose the members: what models tell beyond a baseline.

Two classifiers tell members from others, each fitted to some of them and asked about the
rest. The baseline knows a record's client, class and score under the model before
training, or what its owner gives that holds nothing of a trained model; the other also
its score under the model that is attacked. What both find is a difference between the
records; what the second finds beyond it may be membership, but only if training sharpens
no difference that was there, and the baseline knows all that differs.

Source: Kazmi et al., "PANORAMIA: privacy auditing of machine learning models without
retraining", NeurIPS 2024, definitions 3 and 4 and propositions 1 and 2. There others are
generated records, and both are networks, the baseline on the records themselves; here
others are the non-members that there are, or what somebody generated and entered as such,
and both are logistic regressions, with squares of their inputs or without. As there,
the difference of the two bounds is a measure of leakage, and no bound on epsilon: the
baseline's is a bound from below.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array, hstack

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.parts.untrained_control import (
    attack_untrained,
    can_attack_untrained,
)
from privaudit.auditing.played_scenario import AuditPart
from privaudit.core.limits import check_limit
from privaudit.report.wording import interval, point
from privaudit.statistics.comparisons import paired_auroc_at
from privaudit.statistics.estimate import Estimate, clopper_pearson, effective_count
from privaudit.statistics.roc import auroc
from privaudit.statistics.verdict import Sampling
from privaudit_labs.shift.blind_baseline import variance_doubled

FOLDS, INNER_FOLDS = 5, 3
GUESSED = 0.1  # share of the records that are called members: the likeliest ones
LARGEST = 1e100  # a column with more is scaled first: its squares would overflow
_CROSS_FITTED = "cross-fitted in {folds} folds, variance doubled"
FARTHEST = 3.0  # standard deviations, beyond which no square grows

Inputs = Float[np.ndarray, "_ _"] | csr_array


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
    scores = np.concatenate([client.scores for client in before.clients])
    return beyond_known(after, scores[:, None])


def beyond_known(
    result: AttackResult, known: Float[np.ndarray, "records columns"]
) -> BeyondBaseline | None:
    """Return what an attack's scores tell beyond numbers that hold no trained model.

    Args:
        result: Its clients' records, one after the other.
        known: Of the same records; none for client and class alone, which are always
            known.

    Returns:
        None where there are fewer than five members or non-members, or as many
        clusters of records.

    Raises:
        LimitError: More numbers are known than a classifier is fitted to.
    """
    check_limit("baseline", known.size, "What is known without the model")
    order = _order(result)
    truth = np.concatenate([client.is_member for client in result.clients])[order]
    cluster = _cluster(result, order)
    if min(_count(truth, cluster), _count(~truth, cluster)) < FOLDS:
        return None
    inputs = _standard(known[order])
    scores = np.concatenate([client.scores for client in result.clients])[order]
    full = np.column_stack([inputs, _standard(scores[:, None])])
    groups = _groups(result, order)
    return compared(inputs, full, truth, cluster, groups=groups)


def compared(
    known: Float[np.ndarray, "records inputs"],
    with_model: Float[np.ndarray, "records more"],
    truth: Bool[np.ndarray, " records"],
    cluster: Int[np.ndarray, " records"] | None = None,
    *,
    groups: csr_array | None = None,
) -> BeyondBaseline:
    """Return what a classifier on some inputs finds beyond one on others.

    Args:
        known: Inputs of the first, on like scales.
        with_model: Those of the second.
        truth: Who is a member.
        cluster: Numbers that records share which resemble one another: they are of one
            fold, and intervals count what they share.
        groups: More inputs of both, each 0 or 1: which class and client a record is of.
    """
    pairs = (_with_squares(inputs, groups) for inputs in (known, with_model))
    plain, full = (_cross_fitted(both, truth, cluster) for both in pairs)
    least, bound = (odds_bound(s, truth, cluster=cluster) for s in (plain, full))
    clusters = None if cluster is None else (cluster[truth], cluster[~truth])
    alone, more = (
        variance_doubled(auroc(s[truth], s[~truth], clusters=clusters))
        for s in (plain, full)
    )
    gain = paired_auroc_at([(full, plain, truth)], [cluster])(0.95).estimate
    return BeyondBaseline(
        _marked(alone),
        _marked(more),
        _marked(_widened(gain)),
        least,
        bound,
        max(bound - least, 0.0),
    )


def _widened(gain: Estimate) -> Estimate:
    """Return the difference with twice its variance, as both of its AUROCs have it.

    With the plain one, 5 % of intervals lie above 0 where there is no difference, and
    5 to 6 % below.
    """
    half = math.sqrt(2) * max(gain.high - gain.value, gain.value - gain.low)
    low, high = max(gain.value - half, -1.0), min(gain.value + half, 1.0)
    return replace(gain, low=low, high=high)


def _marked(estimate: Estimate) -> Estimate:
    return replace(
        estimate, method=f"{estimate.method}; {_CROSS_FITTED.format(folds=FOLDS)}"
    )


def odds_bound(
    scores: Float[np.ndarray, " records"],
    truth: Bool[np.ndarray, " records"],
    share: float = GUESSED,
    cluster: Int[np.ndarray, " records"] | None = None,
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
        cluster: As of :func:`compared`: the guesses are then of their effective number.

    Returns:
        The largest c that 97.5 % of such numbers exclude, in nats, at least 0.
    """
    count = max(1, round(share * len(scores)))
    cut = np.sort(scores)[-count]
    above, tied = scores > cut, scores == cut
    drawn = int(count - above.sum())  # of the tied ones
    hits = int(truth[above].sum())
    right = float(hits + drawn * int(truth[tied].sum()) // int(tied.sum()))
    trials = float(count)
    if cluster is not None:
        called = scores >= cut
        trials *= effective_count(truth[called], cluster[called]) / called.sum()
    hit = np.array([right / count * trials])
    low = float(clopper_pearson(hit, trials, 0.95)[0][0])
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


def _cluster(
    result: AttackResult, order: Int[np.ndarray, " records"]
) -> Int[np.ndarray, " records"] | None:
    found = [one.cluster for one in result.clients if one.cluster is not None]
    return np.concatenate(found)[order] if len(found) == len(result.clients) else None


def _count(
    some: Bool[np.ndarray, " records"], cluster: Int[np.ndarray, " records"] | None
) -> int:
    return int(some.sum()) if cluster is None else len(np.unique(cluster[some]))


def _groups(result: AttackResult, order: Int[np.ndarray, " records"]) -> csr_array:
    """Return a column of ones for each class and client; a thousand of them are small."""
    labels = np.concatenate([client.labels for client in result.clients])[order]
    classes = np.unique(labels, return_inverse=True)[1]
    clients = _clients(result)[order]
    rows, ones = np.arange(len(order)), np.ones(len(order))
    parts = [csr_array((ones, (rows, part))) for part in (classes, clients)]
    return csr_array(hstack(parts, format="csr"))


def _with_squares(
    numbers: Float[np.ndarray, "records columns"], groups: csr_array | None
) -> tuple[Inputs, Inputs]:
    """Return inputs without and with squares, which groups' ones are themselves."""
    squares = np.minimum(numbers**2, FARTHEST**2)
    both = numbers, np.column_stack([numbers, squares])
    if groups is None:
        return both
    plain, more = (hstack([groups, csr_array(one)], format="csr") for one in both)
    return csr_array(plain), csr_array(more)


def _standard(
    numbers: Float[np.ndarray, "records columns"],
) -> Float[np.ndarray, "records columns"]:
    largest = np.abs(numbers).max(axis=0, initial=0.0)
    numbers = numbers / np.where(largest > LARGEST, largest, 1.0)
    return (numbers - numbers.mean(axis=0)) / np.maximum(numbers.std(axis=0), 1e-12)


def _cross_fitted(
    both: tuple[Inputs, Inputs],
    truth: Bool[np.ndarray, " records"],
    cluster: Int[np.ndarray, " records"] | None,
) -> Float[np.ndarray, " records"]:
    """Return the scores of the better of two classifiers, chosen within each fold.

    Without squares a baseline misses a difference in spread, which a score may tell;
    with them it learns worse from many columns.
    """
    scores = np.zeros(len(truth))
    for known, asked in _folds(FOLDS, truth, cluster):
        same = None if cluster is None else cluster[known]
        skills = [_skill(one[known], truth[known], same) for one in both]
        scores[asked] = _fitted(both[int(np.argmax(skills))], truth, known, asked)
    return scores.round(9)  # equal records tie, whatever the order of sums


def _skill(
    inputs: Inputs,
    truth: Bool[np.ndarray, " records"],
    cluster: Int[np.ndarray, " records"] | None,
) -> float:
    """Return the AUROC of classifiers on records that they were not fitted to."""
    scores = np.zeros(len(truth))
    for known, asked in _folds(INNER_FOLDS, truth, cluster):
        scores[asked] = _fitted(inputs, truth, known, asked)
    scores = scores.round(9)
    return auroc(scores[truth], scores[~truth]).value


def _fitted(
    inputs: Inputs,
    truth: Bool[np.ndarray, " records"],
    known: Int[np.ndarray, " known"],
    asked: Int[np.ndarray, " asked"],
) -> Float[np.ndarray, " asked"]:
    """Return scores by a fit to the known records; all equal if those are of one kind."""
    if truth[known].all() or not truth[known].any():
        return np.zeros(len(asked))
    from sklearn.linear_model import LogisticRegression  # takes half a second

    fit = LogisticRegression(max_iter=1000).fit(inputs[known], truth[known])
    return np.asarray(fit.decision_function(inputs[asked]))


def _folds(
    count: int,
    truth: Bool[np.ndarray, " records"],
    cluster: Int[np.ndarray, " records"] | None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    # Takes half a second.
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    fold = StratifiedKFold if cluster is None else StratifiedGroupKFold
    folds = fold(count, shuffle=True, random_state=0)
    return list(folds.split(truth, truth, cluster))


def sentences(found: BeyondBaseline | None, sampling: Sampling) -> list[str]:
    """Say what scores tell beyond what is known without the model."""
    if found is None:
        return ["Too few members or others to fit a baseline: at least five of each."]
    gain = found.gain
    if not gain.excludes(0):
        said = "the scores tell nothing certain beyond it"
    elif gain.value > 0:
        said = "the scores tell members beyond it"
    else:
        said = "the scores only add noise to it"
    odd = (
        " A coin is declared, and members differ without the model: look into the coin."
        if sampling == "coin" and found.baseline.low > 0.5
        else ""
    )
    return [
        "By what is known without the trained model, a classifier tells members from "
        f"others with an AUROC of {point(found.baseline)} {interval(found.baseline)}; "
        f"with the scores too, of {point(found.with_model)} {interval(found.with_model)}. "
        f"Gain {point(gain, signed=True)} {interval(gain)}: {said}. Excess after PANORAMIA "
        f"{found.excess:.2f} nats ({found.bound:.2f} less {found.baseline_bound:.2f}), a "
        "measure and no bound on epsilon. What the baseline does not know, and the model "
        f"does, counts as gain.{odd}"
    ]


PANORAMIA = AuditPart(
    "panoramia",
    BeyondBaseline | None,
    applies=can_attack_untrained,
    compute=lambda played: beyond_baseline(*attack_untrained(played)[1:]),
    nothing=None,
    title="Beyond a baseline without the trained models",
    of_known=beyond_known,
    says=sentences,
)
