"""Record exposure: which records fall to all attacks, what each loses, and what they share.

A record's signal under models that trained on it, and under those that did not, is
taken as normal with one deviation (LiRA's view). How far apart the two lie, in
deviations, is all that an attack on this signal can learn of the record's membership:
the best test between them errs as one between N(0, 1) and N(loss, 1). It is an estimate
of what this signal shows, and no bound on what another one might.

The loss is of LiRA's shadow models, which train on the candidates: it needs no attack
on the client itself, so that it ranks members and others alike. But it is not free of
the client's coins. Where the adversary saw broadcasts, shadow models start from them,
and these hold what members did in earlier rounds and what the others did not: models
that are "out" know something of a member all the same. So the means of both stand side
by side. Nobody's guarantee: another signal may show more of a record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtrc, stdtr

from privaudit.auditing.attack_result import AttackResult, ClientScores
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.shadow_models import shadow_signals
from privaudit.core.lazy_torch import torch
from privaudit.datasets.records import ANSWER, PADDING, Records
from privaudit.statistics.comparisons import holm, p_above_chance
from privaudit.statistics.estimate import (
    Estimate,
    mean_with_t,
    normal_quantile,
    proportion,
    two_proportions,
)
from privaudit.statistics.roc import mean_ranks, pooled_auroc, sign_turned
from privaudit.statistics.shadow_comparison import FLAT

TOP = 10  # percent of a client's candidates that an attack points at


@dataclass(frozen=True)
class RankedClient:
    """One client's candidates under all attacks.

    Attributes:
        scores: Any attack's entry: records, classes and the truth are the same in all.
        ranks: Each candidate's place among the client's by each attack, in (0, 1), ties
            sharing the mean of theirs; 1 is the likeliest member.
    """

    scores: ClientScores
    ranks: Float[np.ndarray, "attacks candidates"]

    @property
    def seen(self) -> Int[np.ndarray, " candidates"]:
        """At how many attacks a candidate is in the top share."""
        is_top: Bool[np.ndarray, "attacks candidates"] = self.ranks > 1 - TOP / 100
        return is_top.sum(axis=0)


@dataclass(frozen=True)
class SharedLevel:
    """Records that at least so many attacks point at.

    Attributes:
        independent: What both would be if attacks were independent of one another and
            of membership: the upper tail of a binomial.
    """

    attacks: int
    members: Estimate
    others: Estimate
    beyond: Estimate
    independent: float


@dataclass(frozen=True)
class SharedExposure:
    """How many records fall to several attacks at once.

    An attack that knows nothing puts members and others into its top share alike, and
    attacks that look at one model agree even then. So the others are what chance is:
    they were not trained on, and the attacks' agreement is theirs, too.

    Attributes:
        top: The share of a client's candidates that counts, in percent.
        levels: For at least one attack, two, and so on, up to all.
    """

    top: int
    levels: tuple[SharedLevel, ...]

    @property
    def all(self) -> SharedLevel:
        """Records that every attack points at."""
        return self.levels[-1]

    @property
    def most(self) -> SharedLevel:
        """Records that more than half of the attacks point at."""
        return self.levels[len(self.levels) // 2]


def rank_clients(results: Mapping[str, AttackResult]) -> list[RankedClient]:
    """Return those clients that all attacks attacked, with their ranks by each of at least one."""
    by_attack = [
        {one.client: one for one in result.clients} for result in results.values()
    ]
    ranked = []
    for name, first in by_attack[0].items():
        entries = [clients.get(name) for clients in by_attack]
        alike = [
            one.scores
            for one in entries
            if one is not None and np.array_equal(one.records, first.records)
        ]
        if len(alike) < len(entries):
            continue
        ranks = np.stack([mean_ranks(one) for one in alike]) / (len(first.records) + 1)
        ranked.append(RankedClient(first, ranks))
    return ranked


def share_exposure(clients: Sequence[RankedClient]) -> SharedExposure:
    """Return how many records several attacks point at."""
    attacks = len(clients[0].ranks)
    seen = np.concatenate([one.seen for one in clients])
    is_member = np.concatenate([one.scores.is_member for one in clients])
    members, others = seen[is_member], seen[~is_member]

    def level(least: int) -> SharedLevel:
        hit = int((members >= least).sum()), len(members)
        miss = int((others >= least).sum()), len(others)
        chance = float(bdtrc(least - 1, attacks, TOP / 100))
        difference = two_proportions(*hit, *miss)
        return SharedLevel(
            least, proportion(*hit), proportion(*miss), difference, chance
        )

    return SharedExposure(TOP, tuple(level(least) for least in range(1, attacks + 1)))


FEWEST_MODELS = 3  # in, and as many out: with fewer a deviation is a guess
LEVEL = 0.95


class RecordLosses(NamedTuple):
    """How far the models that trained on a record are from those that did not.

    Attributes:
        value: In deviations of one model's signal; above 0 where training on the record
            raises it. NaN where too few models were in, or out.
        low: Lower end of each record's own interval of 95 %, not corrected.
        p_value: One-sided, of a loss of 0 or less; 1 where there is no estimate.
    """

    value: Float[np.ndarray, " records"]
    low: Float[np.ndarray, " records"]
    high: Float[np.ndarray, " records"]
    p_value: Float[np.ndarray, " records"]

    def exposed(self, rate: float = 0.05) -> Bool[np.ndarray, " records"]:
        """Return the records that lose something, at an expected rate of false discoveries.

        Source: Benjamini and Hochberg, "Controlling the false discovery rate", Journal
        of the Royal Statistical Society B 57, 1995; records whose coins are tossed
        independently have uncorrelated losses, though the same models give them.
        """
        p_value = np.clip(self.p_value, 0, 1)
        ordered, count = np.sort(p_value), len(p_value)
        passed = np.flatnonzero(ordered * (count / np.arange(1, count + 1)) <= rate)
        largest = ordered[passed[-1]] if len(passed) else -1
        return np.asarray(p_value <= largest)


def record_losses(
    signals: Float[np.ndarray, "models records"],
    is_in: Bool[np.ndarray, "models records"],
    is_out: Bool[np.ndarray, "models records"],
) -> RecordLosses:
    """Return each record's loss with its interval.

    The difference of the means over the record's pooled deviation, which few models
    make too large by a known factor (Hedges). Its pivot is a noncentral t.

    Source: records ranked by LiRA's two normals: Carlini et al., "The privacy onion
    effect", NeurIPS 2022; one pooled deviation is our choice. The factor: Hedges,
    Journal of Educational Statistics 6, 1981; the interval: Johnson and Welch,
    "Applications of the non-central t-distribution", Biometrika 31, 1940, normal
    approximation.

    Args:
        signals: Higher where a model knows a record better, such as log-odds of its
            class.
        is_in: Which model was trained on which record.
        is_out: Which model knows nothing of it.

    Example:
        >>> signals = np.array([[2.0], [3.0], [4.0], [0.0], [1.0], [2.0]])
        >>> inside = np.array([[True]] * 3 + [[False]] * 3)
        >>> found = record_losses(signals, inside, ~inside)
        >>> found.value.round(1), found.low.round(1), found.high.round(1)
        (array([1.6]), array([-0.2]), array([4.]))
    """
    counts = is_in.sum(axis=0), is_out.sum(axis=0)
    enough = np.minimum(*counts) >= FEWEST_MODELS
    n_in, n_out = (np.maximum(count, FEWEST_MODELS) for count in counts)
    means, squares = zip(
        *(_moments(signals, one) for one in (is_in, is_out)), strict=True
    )
    freedom = n_in + n_out - 2.0
    deviation = np.sqrt((squares[0] + squares[1]) / freedom)
    distance = (means[0] - means[1]) / np.maximum(deviation, FLAT)
    error = np.sqrt(1 / n_in + 1 / n_out)
    pivot = distance / error
    centre = pivot * (1 - 1 / (4 * freedom))
    reach = normal_quantile(LEVEL) * np.sqrt(1 + pivot**2 / (2 * freedom))
    value = distance * (1 - 3 / (4 * freedom - 1))
    nothing = np.where(enough, 0.0, np.nan)
    return RecordLosses(
        value + nothing,
        np.minimum((centre - reach) * error, value) + nothing,
        np.maximum((centre + reach) * error, value) + nothing,
        np.where(enough, stdtr(freedom, -pivot), 1.0),
    )


def _moments(
    signals: Float[np.ndarray, "models records"],
    chosen: Bool[np.ndarray, "models records"],
) -> tuple[Float[np.ndarray, " records"], Float[np.ndarray, " records"]]:
    """Return each record's mean over the chosen models, and the sum of squares around it."""
    mean = (signals * chosen).sum(axis=0) / np.maximum(chosen.sum(axis=0), 1)
    return mean, (chosen * (signals - mean) ** 2).sum(axis=0)


RARE, ISOLATED, LONG = "rare class", "isolated", "long text"
CLASS = "class "  # in front of a class's number
FEWEST_WITH = 10  # records with a property, and as many without: fewer say nothing
_ROWS = 1024  # compared with all others at once


@dataclass(frozen=True)
class PropertyExposure:
    """Whether records with a property are more exposed than others of their client.

    Attributes:
        name: "class cat", "rare class", "isolated" or "long text".
        n: Records with it, and without, in clients that have both.
        auroc: The chance that one with it is more exposed than one without, within a
            client: above 0.5 where the property goes with exposure; None where there
            are too few.
        p_value: Two-sided, of 0.5, by Holm's method over all properties with enough.
    """

    name: str
    n: tuple[int, int]
    auroc: Estimate | None
    p_value: float = 1.0


def numbers_of(records: Records) -> dict[str, Float[np.ndarray, " records"]]:
    """Return what is measured of one client's candidates, by property: more is more so.

    "isolated" is the distance to the client's next record, 1 - cosine of what the frozen
    model makes of both; "long text" counts an answer's tokens, or a text's.
    """
    found = {}
    features = torch.nn.functional.normalize(records.features.float(), dim=-1)
    if len(records) > 1 and features.abs().amax() > 0:
        found[ISOLATED] = 1 - _nearest(features)
    if records.words is not None:
        kinds = records.words.kinds
        is_counted = kinds == ANSWER if (kinds == ANSWER).any() else kinds != PADDING
        found[LONG] = is_counted.sum(dim=-1).double().numpy()
    return found


def _nearest(features: torch.Tensor) -> Float[np.ndarray, " records"]:
    """Return each record's cosine with the one most like it."""
    best = []
    for start in range(0, len(features), _ROWS):
        cosines = features[start : start + _ROWS] @ features.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -1
        best.append(cosines.amax(dim=1))
    return torch.cat(best).double().numpy()


def properties_of(
    labels: Int[np.ndarray, " records"],
    numbers: Mapping[str, Float[np.ndarray, " records"]],
) -> dict[str, Bool[np.ndarray, " records"]]:
    """Return which of one client's records have which property.

    A number is one where it lies above the client's median; a class is rare where fewer
    of the client's records are of it than of the median record's class.
    """
    classes, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    found = {}
    if len(classes) > 1:
        found = {f"{CLASS}{label}": labels == label for label in classes}
        found[RARE] = _above_median(-counts[number].astype(np.float64))
    return found | {name: _above_median(of) for name, of in numbers.items()}


def _above_median(numbers: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    return numbers > np.median(numbers)


def compare_properties(
    clients: Sequence[tuple[Float[np.ndarray, " _"], Mapping[str, np.ndarray]]],
    classes: Sequence[str] = (),
) -> tuple[PropertyExposure, ...]:
    """Return each property's part in exposure, corrected for their number.

    Of each client: how exposed its records are, and which have which property.
    """
    names = sorted({name for _, properties in clients for name in properties}, key=_key)
    found = [_compare(name, clients) for name in names]
    tested = [one for one in found if one.auroc is not None]
    sides = [(one.auroc, sign_turned(one.auroc)) for one in tested if one.auroc]
    adjusted = holm([min(map(p_above_chance, both)) for both in sides])
    p_values = {one.name: float(p) for one, p in zip(tested, adjusted, strict=True)}
    return tuple(
        replace(
            one, name=_named(one.name, classes), p_value=p_values.get(one.name, 1.0)
        )
        for one in found
    )


def _named(name: str, classes: Sequence[str]) -> str:
    is_class, number, _ = _key(name)
    return f"{CLASS}{classes[number]}" if is_class and number < len(classes) else name


def _key(name: str) -> tuple[bool, int, str]:
    """Sort classes by number, and behind all else."""
    is_class = name.startswith(CLASS)
    return is_class, int(name.removeprefix(CLASS)) if is_class else 0, name


def _compare(
    name: str,
    clients: Sequence[tuple[Float[np.ndarray, " _"], Mapping[str, np.ndarray]]],
) -> PropertyExposure:
    groups = [
        (exposed[has[name]], exposed[~has[name]])
        for exposed, has in clients
        if name in has and has[name].any() and not has[name].all()
    ]
    having, lacking = (sum(len(group[side]) for group in groups) for side in (0, 1))
    enough = min(having, lacking) >= FEWEST_WITH
    return PropertyExposure(
        name, (having, lacking), pooled_auroc(groups) if enough else None
    )


FEWEST_CANDIDATES = 20  # of each client that is looked at: a tenth of fewer is one
FEWEST_ATTACKS = 2
RATE = 0.05  # of false discoveries


@dataclass(frozen=True)
class PrivacyLoss:
    """What single records lose, in deviations of one model's signal.

    Attributes:
        shadows: Models that say it, about half of them trained on each record.
        n: Records with an estimate.
        exposed: How many lose something, at a false discovery rate of 5 %.
        worst: The mean loss, by one half of the models, of that tenth of a client's
            records that the other half ranks highest: no record is chosen for its
            noise. None where a half has too few models.
        rest: The same of all other records.
        members: The mean loss of those that the client trained on.
        others: Of those that it did not: where the two differ, the loss depends on the
            client's coins, as by the broadcasts that shadow models start from.
    """

    shadows: int
    n: int
    exposed: int
    worst: Estimate | None
    rest: Estimate | None
    members: Estimate | None = None
    others: Estimate | None = None


@dataclass(frozen=True)
class ExposedRecords:
    """Each record's exposure, as columns of one length: never in an export.

    Attributes:
        record: Its position in the data set; of a group with one coin, its first.
        seen: At how many attacks it is in the top share.
        loss: Its privacy loss; None where there is no estimate.
        low: Lower end of its own interval of 95 %, uncorrected.
    """

    client: tuple[str, ...]
    record: tuple[int, ...]
    is_member: tuple[bool, ...]
    seen: tuple[int, ...]
    loss: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]

    @property
    def losses(self) -> Float[np.ndarray, " records"]:
        """The losses, NaN where there is no estimate."""
        return np.array(self.loss, np.float64)


@dataclass(frozen=True)
class RecordExposure:
    """What an audit says of single records.

    Attributes:
        shared: How many fall to all attacks.
        loss: What each loses; None without shadow models that train on candidates.
        properties: What goes with exposure. By the loss; without it by members' mean
            rank over attacks.
    """

    shared: SharedExposure
    loss: PrivacyLoss | None
    properties: tuple[PropertyExposure, ...]
    records: ExposedRecords


@dataclass(frozen=True)
class _ClientLosses:
    """Losses of one client's records: by all shadow models, and by half of them each."""

    whole: RecordLosses
    first: Float[np.ndarray, " units"]
    second: Float[np.ndarray, " units"]


def expose_records(played: PlayedScenario) -> RecordExposure | None:
    """Return what the attacks of an audit say of single records together.

    None where no attacked client has enough candidates, or all members or others.
    """
    own = {n: r for n, r in played.results.items() if n in played.scenario.attacks}
    clients = [
        c for c in rank_clients(own) if len(c.scores.records) >= FEWEST_CANDIDATES
    ]
    truth = np.concatenate([c.scores.is_member for c in clients] or [np.zeros(0, bool)])
    if truth.all() or not truth.any():
        return None
    trained_anyhow = any(  # shadow models, on the candidates
        getattr(attack, "mode", "") == "online"
        and getattr(attack, "shadows", 0) == played.shadows
        for attack in played.scenario.attacks.values()
    )
    losses = _losses(played) if trained_anyhow else {}
    found = [losses.get(one.scores.client) for one in clients]
    exposed = [
        # Without a loss members' mean rank: others' tell of no exposure.
        np.where(one.scores.is_member, one.ranks.mean(axis=0), np.nan)
        if loss is None
        else loss.whole.value
        for one, loss in zip(clients, found, strict=True)
    ]
    known = [
        (halves, one.scores.is_member)
        for one, halves in zip(clients, found, strict=True)
        if halves is not None
    ]
    return RecordExposure(
        share_exposure(clients),
        _summary(known, played.shadows) if known else None,
        _properties(played, clients, exposed),
        _columns(clients, found),
    )


def _losses(played: PlayedScenario) -> dict[str, _ClientLosses]:
    shadow_known = shadow_signals(
        played.adversary, played.shadowed, played.shadows, source="candidates"
    )
    found = {}
    for target, of_target in zip(played.shadowed, shadow_known, strict=True):
        known = of_target.candidates
        signals = known.signals.confidence.double().numpy()
        is_in, is_out = known.is_in.numpy(), known.is_out.numpy()
        pairs = np.arange(len(signals)) // 2 % 2  # a pair has each record once
        whole, *halves = (
            _by_unit(
                played, target.client, record_losses(signals[r], is_in[r], is_out[r])
            )
            for r in (slice(None), pairs == 0, pairs == 1)
        )
        found[target.client] = _ClientLosses(whole, *(half.value for half in halves))
    return found


def _by_unit(played: PlayedScenario, client: str, of: RecordLosses) -> RecordLosses:
    """Return the means over records that share a coin; twice a mean of p-values is one.

    Source: Vovk and Wang, "Combining p-values via averaging", Biometrika 107, 2020.
    """
    value, low, high, p_value = (played.by_unit(client, column) for column in of)
    if len(value) < len(of.value):
        p_value = np.minimum(2 * p_value, 1.0)
    return RecordLosses(value, low, high, p_value)


def _summary(
    found: Sequence[tuple[_ClientLosses, Bool[np.ndarray, " _"]]], shadows: int
) -> PrivacyLoss:
    clients = [client for client, _ in found]
    is_member = np.concatenate([truth for _, truth in found])
    columns = zip(*(client.whole for client in clients), strict=True)
    whole = RecordLosses(*map(np.concatenate, columns))
    is_worst = np.concatenate([_top(client.first) for client in clients])
    value = np.concatenate([client.second for client in clients])
    known = np.isfinite(value) & np.isfinite(
        np.concatenate([client.first for client in clients])
    )
    there = np.isfinite(whole.value)
    return PrivacyLoss(
        shadows,
        int(there.sum()),
        int(whole.exposed(RATE).sum()),
        _mean(value[known & is_worst]),
        _mean(value[known & ~is_worst]),
        _mean(whole.value[there & is_member]),
        _mean(whole.value[there & ~is_member]),
    )


def _top(losses: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Return the top share of a client's records; those without an estimate are last."""
    count = len(losses) * TOP // 100
    order = np.argsort(-np.nan_to_num(losses, nan=-np.inf), kind="stable")
    is_top = np.zeros(len(losses), dtype=bool)
    is_top[order[:count]] = True
    return is_top


def _mean(values: Float[np.ndarray, " n"]) -> Estimate | None:
    return mean_with_t(values) if len(values) > 1 else None


def _properties(
    played: PlayedScenario,
    clients: Sequence[RankedClient],
    exposed: Sequence[Float[np.ndarray, " _"]],
) -> tuple[PropertyExposure, ...]:
    candidates = {target.client: target.candidates for target in played.targets}
    groups = []
    for one, how_far in zip(clients, exposed, strict=True):
        name = one.scores.client
        numbers = {
            what: played.by_unit(name, of)
            for what, of in numbers_of(candidates[name]).items()
        }
        known = np.isfinite(how_far)
        has = properties_of(one.scores.labels, numbers)
        groups.append((how_far[known], {n: of[known] for n, of in has.items()}))
    return compare_properties(groups, played.run.class_names)


def _columns(
    clients: Sequence[RankedClient], losses: Sequence[_ClientLosses | None]
) -> ExposedRecords:
    scores = [one.scores for one in clients]
    names = [np.repeat(one.client, len(one.records)) for one in scores]
    columns = [
        np.full((3, len(one.records)), np.nan)
        if loss is None
        else np.stack(loss.whole[:3])
        for one, loss in zip(scores, losses, strict=True)
    ]
    rows = np.concatenate(columns, axis=1).round(4).tolist()
    value, low, high = (
        tuple(None if math.isnan(one) else one for one in row) for row in rows
    )
    return ExposedRecords(
        tuple(np.concatenate(names).tolist()),
        tuple(np.concatenate([one.records for one in scores]).tolist()),
        tuple(np.concatenate([one.is_member for one in scores]).tolist()),
        tuple(np.concatenate([one.seen for one in clients]).tolist()),
        value,
        low,
        high,
    )


RECORD_EXPOSURE = AuditPart(
    "record_exposure",
    RecordExposure | None,
    applies=lambda played: (
        played.scenario.unit == "record"
        and not played.scenario.one_run
        and len(played.scenario.attacks) >= FEWEST_ATTACKS
    ),
    compute=expose_records,
    nothing=None,
    title="Single records",
)
