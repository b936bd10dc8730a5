"""The round loop: parties send nothing outside of it.

Many federations can run side by side: their clients form one cohort, so that an
adversary's shadow federations cost little more than one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import COHORT_SIZE
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, alike, distinct, stack, unstack
from privaudit.federated.local_training import (
    ClientInput,
    Stacking,
    Trained,
    train_clients,
    without_slots,
)
from privaudit.federated.messages import (
    Masks,
    RoundMessages,
    events_of,
    exchange,
    inbox_of,
    not_empty,
)
from privaudit.federated.trainer import ClientId, Events, Records, Round, Task, Trainer
from privaudit.federated.trainer_abilities import start_clients
from privaudit.federated.transcripts.transcript import PUBLIC, SERVER, Message
from privaudit.privacy.trace import RoundTrace

RELEASED_TOGETHER = 1_000  # clients
NOTHING_CRAFTED: Mapping[ClientId, Tensors] = MappingProxyType({})


@dataclass
class Federation:
    """One federation's parties: what each holds between two rounds.

    Attributes:
        shards: Each client's members, the records it trains on.
        seeds: Of the run.
        name: Tells the random streams of federations apart that run side by side.
        server: The server's state.
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
        at: The round.
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

    Raises:
        ConfigError: The rate is not in (0, 1].
    """
    if not 0 < rate <= 1:
        raise ConfigError(
            f"A participation rate of {rate:g} was requested. Use one above 0 and at "
            "most 1."
        )
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
        trainer: What is trained.
        task: The task.
        federations: Each moves on by a round.
        index: The round.
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
        part = replace(part, messages=_beside_rule(part.messages, by_rule, at))
        deliveries.append((trained[span], part))
        first = span.stop
    return [
        _move_on(trainer, task, federation, at, results, part)
        for federation, at, (results, part) in zip(
            federations, rounds, deliveries, strict=True
        )
    ]


def _beside_rule(
    messages: tuple[Message, ...], by_rule: Sequence[ClientInput], at: Round
) -> tuple[Message, ...]:
    """Return messages, with what the rule said where the server did not keep to it."""
    return messages + not_empty(
        [Message(at.index, SERVER, p.client, "rule", p.received) for p in by_rule]
    )


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
