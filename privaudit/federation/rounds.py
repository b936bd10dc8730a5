"""Rounds: local training, the exchange of messages, and how a federation moves on.

Parties send nothing outside of it. Many federations can run side by side: their clients
form one cohort, so that an adversary's shadow federations cost little more than one of
them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from privaudit.core.devices import CPU, memory_limit, moved, use_records_at_once
from privaudit.core.errors import PluginError, TrainingError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.parameters import COHORT_SIZE
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import (
    Stacked,
    Tensors,
    alike,
    all_finite,
    below,
    distinct,
    stack,
    unstack,
)
from privaudit.datasets.records import PADDING
from privaudit.federation.masked_sum import Masks, sum_under_masks
from privaudit.federation.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Records,
    Round,
    Task,
    Trainer,
    start_clients,
)
from privaudit.federation.transcript import PUBLIC, SERVER, Kind, Message
from privaudit.privacy.events import ClientTrace, MechanismEvent, RoundTrace, Trace
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum

OPTIMIZER = "optimizer/"  # before the names of what optimisers remember


@dataclass(frozen=True)
class ClientInput:
    """A client before its local training.

    Attributes:
        stream: The name of its random streams.
        kept: Its private state of the round before.
    """

    client: ClientId
    stream: str
    shard: Records
    received: Tensors
    kept: Tensors


@dataclass(frozen=True)
class Trained:
    """A client after its local training.

    Attributes:
        sent: What it sends to the server.
        kept: Its private state for the next round.
        loss: Its mean training loss over local steps.
        events: The privacy mechanisms as its cohort applied them.
        trace: What its mechanisms did; for the run's owner only.
    """

    sent: Tensors
    kept: Tensors
    loss: float
    events: Events
    trace: ClientTrace


@dataclass
class Stacking:
    """How many clients train together.

    Attributes:
        most: As many as are asked for.
        fit: As many of them as memory holds; None until a step was measured.
        records: Of how many of a client's records a step finds the gradient at once; 0
            is all, for which memory holds one client's step.
    """

    most: int
    fit: int | None = None
    records: int = 0

    def size(
        self, trainer: Trainer, task: Task, inputs: Sequence[ClientInput], at: Round
    ) -> int:
        """Return how many of these clients train together, at least 1.

        Where memory is limited, the first call measures one local step.
        """
        limit, several = memory_limit(), min(self.most, len(inputs)) > 1
        splits = getattr(trainer, "micro_batch", None) == 0  # and is not given how
        if self.fit is None and limit is not None and (several or splits):
            measure = partial(memory_of_step, trainer, task, inputs[0], at)
            taken = measure()
            self.fit = min(self.most, max(1, limit // max(1, taken)))
            if splits and taken > limit:
                shard = _longest_shard(task)
                most = len(inputs[0].shard if shard is None else shard)
                self.records = _records_that_fit(measure, taken, limit, most)
        return max(1, min(self.most, len(inputs), self.fit or self.most))


def _records_that_fit(
    measure: Callable[[], int], whole: int, limit: int, most: int
) -> int:
    """Return of how many records a step finds the gradient at once, a power of two.

    0 where even one record at a time saves nothing.

    ``whole`` are the bytes of a step on all ``most`` records, more than the limit.
    """

    def taken(count: int) -> int:
        with use_records_at_once(count):
            return measure()

    if taken(1) >= whole:
        return 0
    count = 1
    while 2 * count < most and taken(2 * count) <= limit:
        count *= 2
    return count


def memory_of_step(trainer: Trainer, task: Task, given: ClientInput, at: Round) -> int:
    """Return the bytes that one client's local step takes at most, beside its records.

    Of a client that has as many records as any could, each the longest public one: what
    is measured tells nothing of the records that clients train on, nor of what they
    draw. A trainer that does not plan its steps by
    :func:`privaudit.federation.batches.epochs_of_batches` runs all of them.
    """
    from privaudit.core.operations import PeakMemory

    shard = _longest_shard(task)
    cohort = Cohort.of(["measured"], [given.shard if shard is None else shard])
    at = replace(at, trace=None, steps=1)
    with PeakMemory() as memory:
        update_clients(
            trainer, task, cohort, stack([given.received]), stack([given.kept]), at
        )
    return memory.peak


def _longest_shard(task: Task) -> Records | None:
    """Return the longest public record, as often as a client has candidates."""
    public = task.public
    if not len(public):
        return None
    longest = 0
    if public.words is not None:
        longest = int((public.words.kinds != PADDING).sum(dim=1).argmax())
    return public.pick(torch.full((max(task.candidates.values()),), longest))


def train_clients(
    trainer: Trainer,
    task: Task,
    inputs: Sequence[ClientInput],
    at: Round,
    stacking: Stacking,
    traced: bool,
) -> list[Trained]:
    """Train clients whose tensors have one signature together, in chunks.

    Raises:
        TrainingError: A loss or a tensor is not finite.
    """
    done: dict[int, Trained] = {}
    received = [given.received for given in inputs]
    for positions in alike(received, [given.kept for given in inputs]):
        size = stacking.size(trainer, task, [inputs[i] for i in positions], at)
        for first in range(0, len(positions), size):
            chunk = positions[first : first + size]
            some = [inputs[i] for i in chunk]
            with use_records_at_once(stacking.records):
                alone = _train_cohort(trainer, task, some, at, traced)
            done.update(zip(chunk, alone, strict=True))
    results = [done[i] for i in range(len(inputs))]
    _refuse_non_finite(inputs, results, at.index)
    return results


def _train_cohort(
    trainer: Trainer, task: Task, inputs: Sequence[ClientInput], at: Round, traced: bool
) -> list[Trained]:
    streams = [given.stream for given in inputs]
    cohort = Cohort.of(streams, [given.shard for given in inputs])
    received = stack([given.received for given in inputs])
    private_state = stack([given.kept for given in inputs])
    trace = Trace(cohort.sizes)
    at = replace(at, trace=trace if traced else None)
    return _split(
        update_clients(trainer, task, cohort, received, private_state, at), trace
    )


def update_clients(
    trainer: Trainer,
    task: Task,
    cohort: Cohort,
    received: Stacked,
    kept: Stacked,
    at: Round,
) -> LocalResult:
    """Train a cohort for a round; what optimisers remember stands beside its state.

    The trainer's own state knows nothing of it: neither what is sent nor what is
    released can hold it.
    """
    slots = below(OPTIMIZER, kept)
    own_state = without_slots(kept)
    at = replace(at, slots=slots)
    result = trainer.local_update(task, cohort, received, own_state, at)
    _refuse_misshapen(trainer, result, len(cohort))
    remembered = {OPTIMIZER + name: t for name, t in moved(slots, CPU).items()}
    return replace(result, kept={**result.kept, **remembered})


def _refuse_misshapen(trainer: Trainer, result: Any, clients: int) -> None:
    """Refuse what another package's trainer gave that is not stacked over clients."""
    fault = f"a {type(result).__name__}, and not LocalResult"
    if isinstance(result, LocalResult):
        stacked = {"loss": result.loss, **result.sent, **result.kept}
        shapes = {name: tuple(np.shape(one)) for name, one in stacked.items()}
        wrong = [name for name in shapes if shapes[name][:1] != (clients,)]
        if not wrong and shapes["loss"] == (clients,):
            return
        name = (wrong or ["loss"])[0]
        fault = f"{name} of shape {shapes[name]} for {clients} clients"
    raise PluginError(
        f"{type(trainer).__name__}.local_update gave {fault}. Stack loss [clients], and "
        "what is sent and kept [clients, ...], as LocalResult says."
    )


def without_slots(kept: Tensors) -> dict[str, Tensor]:
    """Return the trainer's own part of a client's private state."""
    return {n: tensor for n, tensor in kept.items() if not n.startswith(OPTIMIZER)}


def _split(result: LocalResult, trace: Trace) -> list[Trained]:
    count = len(result.loss)
    parts = zip(
        result.uploads(),
        unstack(result.kept, count),
        result.loss.tolist(),
        map(trace.of, range(count)),
        strict=True,
    )
    return [
        Trained(sent, private_state, loss, result.events, notes)
        for sent, private_state, loss, notes in parts
    ]


def _refuse_non_finite(
    inputs: Sequence[ClientInput], results: Sequence[Trained], index: int
) -> None:
    for given, result in zip(inputs, results, strict=True):
        if not (
            math.isfinite(result.loss)
            and all_finite(result.sent)
            and all_finite(result.kept)
        ):
            raise TrainingError(
                f"Round {index}, {given.client}: the loss or an update is not finite "
                f"(loss {result.loss:g}). What was recorded before this round is kept. "
                "Lower the learning rate and train again."
            )


@dataclass(frozen=True)
class RoundMessages:
    """One round's messages, and what the server has of them.

    Attributes:
        messages: In the order in which they were sent.
        inbox: The sum, or each upload; None where a secure sum was aborted, or every
            upload was lost.
        at: The round, with those who are in the inbox as its participants.
        report: What came of a masked sum; None where nothing was masked.
    """

    messages: tuple[Message, ...]
    inbox: Inbox | None
    at: Round
    report: Mapping[str, Any] | None = None


def exchange(
    trainer: Trainer,
    inputs: Sequence[ClientInput],
    trained: Sequence[Trained],
    at: Round,
    masking: Masks | None,
    dropout: float = 0.0,
) -> RoundMessages:
    """Send broadcasts down and uploads up, in the clear or under masks.

    Without ``masking`` a trainer that needs sums gets what an ideal secure sum would
    reveal, and each upload is lost on its way with the chance ``dropout``.
    """
    down = [
        Message(at.index, SERVER, given.client, "broadcast", given.received)
        for given in inputs
    ]
    sent = {p.client: t.sent for p, t in zip(inputs, trained, strict=True)}
    if masking is not None:
        streams = [given.stream for given in inputs]
        summed = sum_under_masks(masking, sent, at.seeds, at.index, streams)
        there = replace(at, participants=summed.survivors)
        messages = not_empty([*down, *summed.messages])
        return RoundMessages(messages, summed.total, there, summed.report)
    sent = {
        client: tensors
        for client, tensors in sent.items()
        if not at.stream("dropout", client).coin(dropout)
    }
    there = replace(at, participants=tuple(sent))
    up = [update_of(trainer, at.index, c, tensors) for c, tensors in sent.items()]
    inbox = inbox_of(trainer, sent) if sent else None
    return RoundMessages(not_empty(down + up), inbox, there)


def update_of(
    trainer: Trainer, index: int, client: ClientId, tensors: Tensors
) -> Message:
    """Return what a client sends in a round, in the clear."""
    kind: Kind = "update" if trainer.aggregation == "sum" else "individual-update"
    return Message(index, client, SERVER, kind, tensors)


def inbox_of(trainer: Trainer, sent: Mapping[ClientId, Tensors]) -> Inbox:
    """Return what the server gets of uploads: their sum, or each of them."""
    return secure_sum(list(sent.values())) if trainer.aggregation == "sum" else sent


def events_of(events: Events, asked: Round, delivery: RoundMessages) -> Events:
    """Return clients' mechanisms as they count in a sum that some are missing in.

    Whoever is lost takes its noise along: of a "distributed" noise its share, of
    "client" noise one of those that add up.
    """
    there, asked_for = len(delivery.at.participants), len(asked.participants)
    if delivery.inbox is None or there == asked_for:
        return events
    return tuple(_fewer(event, there, asked_for) for event in events)


def _fewer(event: MechanismEvent, there: int, asked_for: int) -> MechanismEvent:
    if event.release == "local":
        return event
    noise = event.noise_multiplier
    if event.noise_at == "distributed":
        noise *= math.sqrt(there / asked_for)
    return replace(event, parties=there, noise_multiplier=noise)


def not_empty(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Leave out messages that carry nothing."""
    return tuple(m for m in messages if m.tensors)


RELEASED_TOGETHER = 1_000  # clients
NOTHING_CRAFTED: Mapping[ClientId, Tensors] = MappingProxyType({})


@dataclass
class Federation:
    """One federation's parties: what each holds between two rounds.

    Attributes:
        shards: Each client's members, the records it trains on.
        name: Tells the random streams of federations apart that run side by side.
        server: The server's state: what it learns, by name.
        kept: The private state of each client that ever took part; it begins then.
        losses: Each participant's mean training loss in the last round.
        secrets: Of the run's secret key; None takes the seeds.
    """

    shards: Mapping[ClientId, Records]
    seeds: Seeds
    name: str = ""
    server: Tensors = field(default_factory=dict)
    kept: dict[ClientId, Tensors] = field(default_factory=dict)
    losses: dict[ClientId, float] = field(default_factory=dict)
    secrets: Seeds | None = field(default=None, repr=False)

    @classmethod
    def begin(
        cls,
        trainer: Trainer,
        task: Task,
        shards: Mapping[ClientId, Records],
        seeds: Seeds,
        name: str = "",
        secrets: Seeds | None = None,
    ) -> "Federation":
        """Return a federation before its first round."""
        start = trainer.start(task, seeds)
        return cls(shards, seeds, name, start, secrets=secrets)

    def stream(self, client: ClientId) -> str:
        """Return the name of one client's random streams."""
        return f"{self.name}/{client}" if self.name else client

    def private_states(
        self, trainer: Trainer, task: Task, clients: Sequence[ClientId]
    ) -> dict[ClientId, Tensors]:
        """Return what clients keep: before they first take part, their start."""
        new = [client for client in clients if client not in self.kept]
        begun = zip(new, start_clients(trainer, task, new, self.seeds), strict=True)
        states = {**self.kept, **dict(begun)}
        return {client: states[client] for client in clients}

    def inputs(self, trainer: Trainer, task: Task, at: Round) -> list[ClientInput]:
        """Return what the participants of a round have when they start to train."""
        return [
            ClientInput(
                client,
                self.stream(client),
                self.shards[client],
                trainer.broadcast(self.server, client, at),
                kept,
            )
            for client, kept in self.private_states(
                trainer, task, at.participants
            ).items()
        ]

    def at(self, index: int, participation: float) -> Round:
        """Return one of its rounds."""
        secrets = self.secrets or self.seeds
        drawn = participants_of(list(self.shards), participation, secrets, index)
        return Round(index, self.seeds, drawn, secrets=self.secrets)


@dataclass(frozen=True)
class RoundRecord:
    """What one round of one federation left behind.

    Attributes:
        at: The round with its participants and its draws.
        messages: In the order in which they were sent.
        events: The privacy mechanisms as applied, by clients and server.
        trace: What each participant's mechanisms did; for the run's owner only.
        secure_sum: What came of a masked sum; None where nothing was masked.
    """

    at: Round
    messages: tuple[Message, ...]
    events: Events
    trace: RoundTrace = field(default_factory=dict)
    secure_sum: Mapping[str, Any] | None = None


def participants_of(
    clients: Sequence[ClientId], rate: float, seeds: Seeds, index: int
) -> tuple[ClientId, ...]:
    """Draw who takes part in a round: a fixed number, at least one.

    The rate is in (0, 1]; the seeds are of the run's secret key, as who is drawn is
    hidden from who sees a release.
    """
    count = count_participants(len(clients), rate)
    order = seeds.stream("participants", round=index).permutation(len(clients))
    return tuple(clients[i] for i in sorted(order[:count].tolist()))


def count_participants(clients: int, rate: float) -> int:
    """Return how many clients take part in a round."""
    return max(1, round(rate * clients))


def run_round(
    trainer: Trainer,
    task: Task,
    federations: Sequence[Federation],
    index: int,
    *,
    participation: float = 1.0,
    cohort_size: int | Stacking = COHORT_SIZE,
    traced: bool = False,
    masking: Masks | None = None,
    dropout: float = 0.0,
    crafted: Mapping[ClientId, Tensors] = NOTHING_CRAFTED,
) -> list[RoundRecord]:
    """Run one round of every federation, and say what was sent in each.

    Args:
        trainer: Trains every federation.
        task: What all parties know.
        federations: Each moves on by a round.
        index: Number of the round, from 0.
        participation: Share of clients that takes part, in (0, 1].
        cohort_size: Clients trained together, where memory holds them.
        traced: Whether private trainers take notes, for the owner; nothing that is
            sent depends on it.
        masking: How uploads are masked; None sends them in the clear.
        dropout: Chance that an upload in the clear is lost; masks know their own.
        crafted: What an active server sends to some clients in place of what its rule
            says, which then stands in the record beside it, as a message of kind
            "rule" that nobody received.

    Raises:
        TrainingError: A loss or a tensor is not finite; no state was changed.
    """
    rounds = [f.at(index, participation) for f in federations]
    if masking is not None:
        rounds = [replace(at, step=masking.step(len(at.participants))) for at in rounds]
    inputs = [
        given
        for federation, at in zip(federations, rounds, strict=True)
        for given in federation.inputs(trainer, task, at)
    ]
    by_rule = [given for given in inputs if given.client in crafted]
    inputs = [
        replace(given, received=crafted.get(given.client, given.received))
        for given in inputs
    ]
    stacking = (
        cohort_size if isinstance(cohort_size, Stacking) else Stacking(cohort_size)
    )
    trained = train_clients(trainer, task, inputs, rounds[0], stacking, traced)
    deliveries, first = [], 0
    for at in rounds:
        span = slice(first, first + len(at.participants))
        part = exchange(trainer, inputs[span], trained[span], at, masking, dropout)
        ruled = [
            Message(at.index, SERVER, p.client, "rule", p.received) for p in by_rule
        ]
        part = replace(part, messages=part.messages + not_empty(ruled))
        deliveries.append((trained[span], part))
        first = span.stop
    return [
        _move_on(trainer, task, federation, at, results, part)
        for federation, at, (results, part) in zip(
            federations, rounds, deliveries, strict=True
        )
    ]


def _move_on(
    trainer: Trainer,
    task: Task,
    federation: Federation,
    at: Round,
    trained: Sequence[Trained],
    delivery: RoundMessages,
) -> RoundRecord:
    """Move the clients' and the server's state on, and say what the round left behind.

    Where a secure sum was aborted, or nothing arrived, the server's state stays.
    """
    results = dict(zip(at.participants, trained, strict=True))
    federation.kept.update({client: one.kept for client, one in results.items()})
    federation.losses = {client: one.loss for client, one in results.items()}
    events = events_of(trained[0].events, at, delivery)
    inbox, summed = delivery.inbox, delivery.at
    if inbox is None:  # accounted as if it had been released, which is no less
        everything = {client: one.sent for client, one in results.items()}
        inbox, summed = inbox_of(trainer, everything), at
    server, more = trainer.aggregate(task, federation.server, inbox, summed)
    if delivery.inbox is not None:
        federation.server = server
    trace = {client: one.trace for client, one in results.items() if one.trace}
    return RoundRecord(at, delivery.messages, events + more, trace, delivery.report)


def give_away(
    trainer: Trainer,
    task: Task,
    federation: Federation,
    index: int,
    *,
    publish: bool = True,
    clients: Sequence[ClientId] | None = None,
) -> tuple[dict[ClientId, Tensors], tuple[Message, ...]]:
    """Send the last broadcast, and return each client's personal model.

    Equal models of a thousand clients are computed once, and are one object.

    The messages bear the number of rounds as their index. Without ``clients`` all of
    them get a model.
    """
    everybody = tuple(federation.shards)
    at = Round(index, federation.seeds, everybody, secrets=federation.secrets)
    received = {
        client: trainer.broadcast(federation.server, client, at)
        for client in (everybody if clients is None else clients)
    }
    models = _release(trainer, task, federation, received)
    down = [
        Message(index, SERVER, client, "broadcast", tensors)
        for client, tensors in received.items()
    ]
    given = [
        Message(index, c, PUBLIC, "release", m) for c, m in models.items() if publish
    ]
    return models, not_empty(down + given)


def _release(
    trainer: Trainer,
    task: Task,
    federation: Federation,
    received: Mapping[ClientId, Tensors],
) -> dict[ClientId, Tensors]:
    """Return the personal models, of a thousand clients at a time.

    So the states that absent clients would begin with do not stand in memory all at once.
    """
    clients, models = list(received), dict[ClientId, Tensors]()
    for first in range(0, len(clients), RELEASED_TOGETHER):
        chosen = clients[first : first + RELEASED_TOGETHER]
        part = {client: received[client] for client in chosen}
        models |= _release_together(trainer, task, federation, part)
    return models


def _release_together(
    trainer: Trainer,
    task: Task,
    federation: Federation,
    received: Mapping[ClientId, Tensors],
) -> dict[ClientId, Tensors]:
    """Return personal models; clients whose tensors are alike go together."""
    clients, broadcasts = list(received), list(received.values())
    kept = federation.private_states(trainer, task, clients)
    states = [without_slots(kept[client]) for client in clients]
    positions, places = distinct(broadcasts, states)
    models: dict[int, Tensors] = {}
    for group in alike(
        *([part[i] for i in positions] for part in (broadcasts, states))
    ):
        chosen = [positions[place] for place in group]
        stacked = trainer.release(
            task,
            [clients[i] for i in chosen],
            stack([broadcasts[i] for i in chosen]),
            stack([states[i] for i in chosen]),
        )
        models.update(zip(group, unstack(stacked, len(group)), strict=True))
    return {
        client: models[place] for client, place in zip(clients, places, strict=True)
    }
