"""Which records fall to all attacks, what each of them loses, and what they share.

The loss is of LiRA's shadow models, which train on the candidates: it needs no attack
on the client itself, so that it ranks members and others alike. But it is not free of
the client's coins. Where the adversary saw broadcasts, shadow models start from them,
and these hold what members did in earlier rounds and what the others did not: models
that are "out" know something of a member all the same. So the means of both stand side
by side. Nobody's guarantee: another signal may show more of a record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from privaudit.auditing.audit_part import AuditPart
from privaudit.auditing.per_record.properties import (
    PropertyExposure,
    compare_properties,
    numbers_of,
    properties_of,
)
from privaudit.auditing.per_record.record_loss import RecordLosses, record_losses
from privaudit.auditing.per_record.shared_exposure import (
    TOP,
    RankedClient,
    SharedExposure,
    rank_clients,
    share_exposure,
)
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.auditing.shadow_models.shadow_signals import shadow_signals
from privaudit.statistics.estimate import Estimate, mean_with_t

FEWEST = 20  # candidates, of each client that is looked at: a tenth of fewer is one
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
        client: Whose it is.
        record: Its position in the data set; of a group with one coin, its first.
        is_member: Whether it was trained on.
        seen: At how many attacks it is in the top share.
        loss: Its privacy loss; None where there is no estimate.
        low: Lower end of its own interval of 95 %, uncorrected.
        high: Upper end.
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
        records: Each of them.
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
    clients = [c for c in rank_clients(own) if len(c.scores.records) >= FEWEST]
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
    value, low, high, p_value = (
        played.by_unit(client, column)
        for column in (of.value, of.low, of.high, of.p_value)
    )
    if len(value) < len(of.value):
        p_value = np.minimum(2 * p_value, 1.0)
    return RecordLosses(value, low, high, p_value)


def _summary(
    found: Sequence[tuple[_ClientLosses, Bool[np.ndarray, " _"]]], shadows: int
) -> PrivacyLoss:
    clients = [client for client, _ in found]
    is_member = np.concatenate([truth for _, truth in found])
    columns = zip(*(_columns_of(client.whole) for client in clients), strict=True)
    whole = RecordLosses(*(np.concatenate(column) for column in columns))
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


def _columns_of(of: RecordLosses) -> tuple[Float[np.ndarray, " _"], ...]:
    return of.value, of.low, of.high, of.p_value


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
        else np.stack(_columns_of(loss.whole)[:3])
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
