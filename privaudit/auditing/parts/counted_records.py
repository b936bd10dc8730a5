"""Counts of records by rank: on how many a client trained, by what it sent alone.

The move of a dense layer is a sum of outer products of output gradients with the client's
own inputs. Where these stay as they are in training, its rank is the number of different
inputs, if that is below the rank that it could have: a head's classes less one, a factor's
rows, all that noise fills. Else the rank says nothing, and neither does this. Records
count that move the layer by more than rounding: not those that are learned already, nor
inputs that are sums of others.
"""

from collections.abc import Sequence

from dataclasses import dataclass

from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.record_gradients import Move, chosen_moves, layers_of
from privaudit.core.lazy_torch import torch
from privaudit.federation.threat_models import EVERYBODY
from privaudit.federation.trainer import Records
from privaudit.models.layer_factors import DIRECTIONS, LayerFactors, row_space
from privaudit.statistics.verdict import Sampling

ATTACK = "projection-residual"  # which finds layers that multiply inputs
ROUNDS = 4  # of a client's, from which uploads are taken
SHOWN = 5  # clients in the sentence


@dataclass(frozen=True)
class CountedRecords:
    """What the rank of one client's uploads counts, or that of sums of all clients'.

    Attributes:
        counted: Different records that it trained on; None where the rank is as large as
            it could be.
        rank: The largest of its uploads of one layer, above rounding.
        most: That an upload could have, as far as candidates show it.
        members: Of its candidates, in truth.
    """

    client: str
    counted: int | None
    rank: int
    most: int
    members: int


def _measure(played: PlayedScenario) -> tuple[CountedRecords, ...]:
    first, is_member = played.targets[0].client, played.run.ledger.is_member
    groups = {target.client: [target] for target in played.targets}
    if not played.adversary.view.sees_updates_of(first):
        groups = {EVERYBODY: [*played.targets]}
    found = []
    for client, targets in groups.items():
        candidates = Records.joined([target.candidates for target in targets])
        moves = chosen_moves(played.adversary, targets[0].client, ROUNDS)
        ranks = [
            _ranks(name, factors, moves)
            for name, factors in _still(played, moves[0], candidates).items()
        ]
        most, rank = max(ranks, default=(0, 0))
        members = sum(
            int(is_member[played.records(target.client)].sum()) for target in targets
        )
        counted = rank if rank < most else None
        found.append(CountedRecords(client, counted, rank, most, members))
    return tuple(found)


def _still(
    played: PlayedScenario, move: Move, records: Records
) -> dict[str, LayerFactors]:
    """Return layers whose inputs a move leaves as they are, each record's at one place."""
    before, after = (
        layers_of(played.adversary, move.point(share), records, move.deltas)
        for share in (0.0, 1.0)
    )
    return {
        name: one
        for name, one in before.items()
        if one.deltas is not None
        and name in after
        and torch.equal(one.inputs, after[name].inputs)
        and bool((one.reached.sum(dim=1) == 1).all())
    }


def _ranks(
    name: str, factors: LayerFactors, moves: Sequence[Move]
) -> tuple[int, int]:
    """Return the largest rank that a layer's uploads could have, and that they have."""
    assert factors.deltas is not None
    inputs, deltas = (
        int(torch.linalg.matrix_rank(part[factors.reached].double(), rtol=1e-6))
        for part in (factors.inputs, factors.deltas)
    )
    moved = [(factors.move(name, move.deltas), move.floors[name]) for move in moves]
    ranks = [len(row_space(rows, floor)[0]) for rows, floor in moved if rows.any()]
    return min(inputs, deltas, DIRECTIONS), max(ranks, default=0)


def sentences(counts: tuple[CountedRecords, ...], sampling: Sampling) -> list[str]:
    """Say how many records were counted, and for whom none were."""
    known = [one for one in counts if one.counted is not None]
    if not known:
        return [
            "The rank of what was sent counts no records: no layer whose inputs stay has "
            "moves of a rank below all that they could have."
        ]
    texts = [f"{one.client} {one.counted} ({one.members} members)" for one in known]
    more = f" and {len(texts) - SHOWN} more" * (len(texts) > SHOWN)
    return [
        "The rank of what was sent counts the different records that moved a layer, here "
        f"beside the members among the candidates: {', '.join(texts[:SHOWN])}{more}; "
        f"none can be counted for {len(counts) - len(known)} of {len(counts)}."
    ]


COUNTED_RECORDS: AuditPart[tuple[CountedRecords, ...]] = AuditPart(
    "counted_records",
    tuple[CountedRecords, ...],
    applies=lambda played: ATTACK in played.results and played.scenario.unit == "record",
    compute=_measure,
    nothing=(),
    title="Records counted by rank",
    says=sentences,
)
