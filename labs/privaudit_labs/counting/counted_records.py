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

from privaudit.auditing.attack import Target
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.record_gradients import chosen_moves, layers_of, of_one_move
from privaudit.core.lazy_torch import torch
from privaudit.federation.threat_models import EVERYBODY
from privaudit.federation.trainer import Records
from privaudit.models.layer_factors import DIRECTIONS, row_space, where_reached
from privaudit.statistics.verdict import Sampling

ATTACK = "projection-residual"  # is made where what is sent multiplies inputs
ROUNDS = 4  # of a client's, from which uploads are taken
SHOWN = 5  # clients in the sentence


@dataclass(frozen=True)
class CountedRecords:
    """What the rank of one client's uploads counts, or that of sums of all clients'.

    Attributes:
        rank: The largest of its uploads of one layer, above rounding: so many different
            records, if it is less than ``most``.
        most: That an upload could have, as far as candidates show it; 0 without a layer.
        members: Of its candidates, in truth.
        dependent: So many candidates' inputs are copies or sums of others', in the layer
            where fewest are.
    """

    client: str
    rank: int
    most: int
    members: int
    dependent: int = 0


def _measure(played: PlayedScenario) -> tuple[CountedRecords, ...]:
    view, first = played.adversary.view, played.targets[0].client
    is_alone = view.sees_updates_of(first) or view.has_release_of(first)
    is_member = played.run.ledger.is_member
    return tuple(
        CountedRecords(
            targets[0].client if is_alone and len(targets) == 1 else EVERYBODY,
            members=sum(
                int(is_member[played.records(one.client)].sum()) for one in targets
            ),
            **_ranks(played, targets),
        )
        for targets in of_one_move(played.adversary, played.targets)
    )


def _ranks(played: PlayedScenario, targets: Sequence[Target]) -> dict[str, int]:
    """Return the rank of the uploads of the layer whose rank could be largest, by field.

    Layers are asked whose inputs the first move leaves as they are, one for each record.
    """
    candidates = Records.joined([target.candidates for target in targets])
    moves = chosen_moves(played.adversary, targets[0].client, ROUNDS)
    before, after = (
        layers_of(played.adversary, moves[0].point(end), candidates, moves[0].deltas)
        for end in (0.0, 1.0)
    )
    found, dependent, reached = [(0, 0)], [], where_reached(before)
    for name in before.keys() & after.keys():
        one, there = before[name], reached[name].there
        stays = torch.equal(one.inputs, after[name].inputs)
        if one.deltas is None or not stays or (there.sum(dim=1) != 1).any():
            continue
        most = [
            int(torch.linalg.matrix_rank(part[there].double(), rtol=1e-6))
            for part in (one.inputs, one.deltas)
        ]
        dependent.append(len(candidates) - most[0])
        moved = [(one.move(name, move.deltas), move.floors[name]) for move in moves]
        ranks = [len(row_space(rows, floor)[0]) for rows, floor in moved if rows.any()]
        found.append((min(*most, DIRECTIONS), max(ranks, default=0)))
    most_of_any, rank = max(found)
    fewest = min(dependent, default=0)
    return {"rank": rank, "most": most_of_any, "dependent": fewest}


def sentences(counts: Sequence[CountedRecords] | None, sampling: Sampling) -> list[str]:
    """Say how many records were counted, and of how many clients none were."""
    if counts is None:
        return []
    texts = [
        f"{one.client} {one.rank} ({one.members} members)"
        for one in counts
        if one.rank < one.most
    ]
    copies = sum(one.dependent for one in counts)
    alike = [
        f"Inputs of {copies} candidates are copies or sums of others' (as one-hot ones "
        "may be): no span tells which of these were trained on."
    ]
    if not texts:
        return [
            "The rank of what was sent counts no records: it is as large as it could be.",
            *alike[: copies > 0],
        ]
    more = f" and {len(texts) - SHOWN} more" * (len(texts) > SHOWN)
    return [
        "The rank of what was sent counts the different records that moved a layer, here "
        f"beside the members among the candidates: {', '.join(texts[:SHOWN])}{more}; "
        f"of {len(counts) - len(texts)} others it is as large as it could be.",
        *alike[: copies > 0],
    ]


COUNTED_RECORDS: AuditPart[tuple[CountedRecords, ...]] = AuditPart(
    "counted_records",
    tuple[CountedRecords, ...],
    applies=lambda played: (
        ATTACK in played.results and played.scenario.unit == "record"
    ),
    compute=_measure,
    nothing=(),
    title="Records counted by rank",
    says=sentences,
)
