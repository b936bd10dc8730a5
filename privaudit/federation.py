"""The round loop: the one place where parties send anything.

Many federations can run side by side: their clients form one cohort, so that an
adversary's shadow federations cost little more than one of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from privaudit.errors import ConfigError, TrainingError
from privaudit.privacy.secure_sum import secure_sum
from privaudit.seeds import Seeds
from privaudit.tensors import (
    Tensors,
    alike,
    all_finite,
    stack,
    unstack,
)
from privaudit.trace import ClientTrace, RoundTrace, Trace
from privaudit.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    PublicTask,
    Records,
    Round,
    Trainer,
)
from privaudit.transcript import PUBLIC, SERVER, Kind, Message

COHORT_SIZE = 128  # clients stacked at once: bounds memory, and part of a run's record


@dataclass
class Federation:
    """One federation's parties: what each holds between two rounds.

    Attributes:
        shards: Each client's members, the records it trains on.
        seeds: Of the run.
        name: Tells the random streams of federations apart that run side by side.
        server: The server's state.
        kept: Each client's private state.
        losses: Each participant's mean training loss in the last round.
    """

    shards: Mapping[ClientId, Records]
    seeds: Seeds
    name: str = ""
    server: Tensors = field(default_factory=dict)
    kept: dict[ClientId, Tensors] = field(default_factory=dict)
    losses: dict[ClientId, float] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        trainer: Trainer,
        task: PublicTask,
        shards: Mapping[ClientId, Records],
        seeds: Seeds,
        name: str = "",
    ) -> "Federation":
        """Return a federation before its first round."""
        kept = {c: trainer.start_client(task, c, seeds) for c in shards}
        return cls(shards, seeds, name, trainer.start(task, seeds), kept)

    def stream(self, client: ClientId) -> str:
        """Return the name of one client's random streams."""
        return f"{self.name}/{client}" if self.name else client

    def at(self, index: int, participation: float) -> Round:
        """Return one of its rounds."""
        drawn = participants_of(list(self.shards), participation, self.seeds, index)
        return Round(index, self.seeds, drawn)


@dataclass(frozen=True)
class RoundRecord:
    """What one round of one federation left behind.

    Attributes:
        at: The round.
        messages: In the order in which they were sent.
        events: The privacy mechanisms as applied, by clients and server.
        trace: What each participant's mechanisms did; for the run's owner only.
    """

    at: Round
    messages: tuple[Message, ...]
    events: Events
    trace: RoundTrace = field(default_factory=dict)


def participants_of(
    clients: Sequence[ClientId], rate: float, seeds: Seeds, index: int
) -> tuple[ClientId, ...]:
    """Draw who takes part in a round: a fixed number, at least one.

    Args:
        clients: All of them.
        rate: Share that takes part, in (0, 1].
        seeds: Of the run.
        index: The round.

    Raises:
        ConfigError: The rate is not in (0, 1].
    """
    if not 0 < rate <= 1:
        raise ConfigError(
            f"A participation rate of {rate:g} was asked for. Take one above 0 and at "
            "most 1."
        )
    count = max(1, round(rate * len(clients)))
    generator = seeds.generator("participants", round=index)
    order = torch.randperm(len(clients), generator=generator)[:count]
    return tuple(clients[i] for i in sorted(order.tolist()))


def run_round(
    trainer: Trainer,
    task: PublicTask,
    federations: Sequence[Federation],
    index: int,
    *,
    participation: float = 1.0,
    cohort_size: int = COHORT_SIZE,
    traced: bool = False,
) -> list[RoundRecord]:
    """Run one round of every federation, and say what was sent in each.

    Args:
        trainer: What is trained.
        task: The task.
        federations: Each moves on by a round.
        index: The round.
        participation: Share of clients that takes part, in (0, 1].
        cohort_size: Clients trained together.
        traced: Whether private trainers take notes, for the owner; nothing that is
            sent depends on it.

    Raises:
        TrainingError: A loss or a tensor is not finite; no state was changed.
    """
    rounds = [f.at(index, participation) for f in federations]
    places = [
        _Place(federation, client)
        for federation, at in zip(federations, rounds, strict=True)
        for client in at.participants
    ]
    received = [
        trainer.broadcast(p.federation.server, p.client, at)
        for p, at in zip(
            places, (at for at in rounds for _ in at.participants), strict=True
        )
    ]
    results = _train(trainer, task, places, received, rounds[0], cohort_size, traced)
    _refuse_non_finite(places, results, index)
    records = []
    for federation, at in zip(federations, rounds, strict=True):
        mine = [i for i, place in enumerate(places) if place.federation is federation]
        messages = _deliver(trainer, places, received, results, mine, at)
        events = _aggregate(trainer, task, federation, places, results, mine, at)
        trace = {places[i].client: results[i].trace for i in mine if results[i].trace}
        records.append(RoundRecord(at, messages, events, trace))
    return records


def give_away(
    trainer: Trainer,
    task: PublicTask,
    federation: Federation,
    index: int,
    *,
    publish: bool = True,
) -> tuple[dict[ClientId, Tensors], tuple[Message, ...]]:
    """Send the last broadcast, and return each client's personal model.

    Args:
        trainer: What was trained.
        task: The task.
        federation: After its last round.
        index: The number of rounds, which these messages bear.
        publish: Whether the personal models are given away.
    """
    clients = tuple(federation.shards)
    at = Round(index, federation.seeds, clients)
    received = [trainer.broadcast(federation.server, c, at) for c in clients]
    models = _release(trainer, task, federation, received)
    down = [
        Message(index, SERVER, c, "broadcast", tensors)
        for c, tensors in zip(clients, received, strict=True)
    ]
    given = [
        Message(index, c, PUBLIC, "release", m) for c, m in models.items() if publish
    ]
    return models, _sent(down + given)


def _release(
    trainer: Trainer,
    task: PublicTask,
    federation: Federation,
    received: Sequence[Tensors],
) -> dict[ClientId, Tensors]:
    """Return the personal models; clients whose tensors are alike go together."""
    clients = tuple(federation.shards)
    kept = [federation.kept[c] for c in clients]
    done: dict[ClientId, Tensors] = {}
    for some in alike(received, kept):
        names = [clients[i] for i in some]
        stacked = trainer.release(
            task,
            names,
            stack([received[i] for i in some]),
            stack([kept[i] for i in some]),
        )
        done.update(zip(names, unstack(stacked, len(some)), strict=True))
    return {client: done[client] for client in clients}


@dataclass(frozen=True)
class _Place:
    federation: Federation
    client: ClientId

    @property
    def kept(self) -> Tensors:
        return self.federation.kept[self.client]

    @property
    def shard(self) -> Records:
        return self.federation.shards[self.client]


@dataclass(frozen=True)
class _Alone:
    sent: Tensors
    kept: Tensors
    loss: float
    events: Events
    trace: ClientTrace


def _train(
    trainer: Trainer,
    task: PublicTask,
    places: Sequence[_Place],
    received: Sequence[Tensors],
    at: Round,
    cohort_size: int,
    traced: bool,
) -> list[_Alone]:
    """Train clients whose tensors have one signature together, in chunks."""
    done: dict[int, _Alone] = {}
    for positions in alike(received, [place.kept for place in places]):
        for first in range(0, len(positions), cohort_size):
            chunk = positions[first : first + cohort_size]
            some = [places[i] for i in chunk]
            down = stack([received[i] for i in chunk])
            alone = _train_cohort(trainer, task, some, down, at, traced)
            done.update(zip(chunk, alone, strict=True))
    return [done[i] for i in range(len(places))]


def _train_cohort(
    trainer: Trainer,
    task: PublicTask,
    places: Sequence[_Place],
    received: Tensors,
    at: Round,
    traced: bool,
) -> list[_Alone]:
    streams = [place.federation.stream(place.client) for place in places]
    cohort = Cohort.of(streams, [place.shard for place in places])
    kept = stack([place.kept for place in places])
    trace = Trace(cohort.sizes)
    at = replace(at, trace=trace if traced else None)
    return _split(trainer.local_update(task, cohort, received, kept, at), trace)


def _split(result: LocalResult, trace: Trace) -> list[_Alone]:
    count = len(result.loss)
    parts = zip(
        result.uploads(),
        unstack(result.kept, count),
        result.loss.tolist(),
        map(trace.of, range(count)),
        strict=True,
    )
    return [
        _Alone(sent, kept, loss, result.events, own) for sent, kept, loss, own in parts
    ]


def _refuse_non_finite(
    places: Sequence[_Place], results: Sequence[_Alone], index: int
) -> None:
    for place, result in zip(places, results, strict=True):
        if not (
            math.isfinite(result.loss)
            and all_finite(result.sent)
            and all_finite(result.kept)
        ):
            raise TrainingError(
                f"Round {index}, {place.client}: the loss or an update is not finite "
                f"(loss {result.loss:g}). What was recorded before this round is kept. "
                "Lower the learning rate and train again."
            )


def _deliver(
    trainer: Trainer,
    places: Sequence[_Place],
    received: Sequence[Tensors],
    results: Sequence[_Alone],
    mine: Sequence[int],
    at: Round,
) -> tuple[Message, ...]:
    """Move the clients' state on, and return what was sent."""
    kind: Kind = "update" if trainer.aggregation == "sum" else "individual-update"
    down = [
        Message(at.index, SERVER, places[i].client, "broadcast", received[i])
        for i in mine
    ]
    up = [
        Message(at.index, places[i].client, SERVER, kind, results[i].sent) for i in mine
    ]
    for i in mine:
        places[i].federation.kept[places[i].client] = results[i].kept
        places[i].federation.losses[places[i].client] = results[i].loss
    return _sent(down + up)


def _aggregate(
    trainer: Trainer,
    task: PublicTask,
    federation: Federation,
    places: Sequence[_Place],
    results: Sequence[_Alone],
    mine: Sequence[int],
    at: Round,
) -> Events:
    """Move the server's state on, and return every mechanism of the round."""
    inbox: Inbox
    if trainer.aggregation == "sum":
        inbox = secure_sum([results[i].sent for i in mine])
    else:
        inbox = {places[i].client: results[i].sent for i in mine}
    federation.server, events = trainer.aggregate(task, federation.server, inbox, at)
    return results[mine[0]].events + events


def _sent(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Leave out messages that carry nothing."""
    return tuple(m for m in messages if m.tensors)
