"""The messages of one round between a server and its clients, and the server's inbox."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federated.local_training import ClientInput, Trained
from privaudit.federated.trainer import ClientId, Events, Inbox, Round, Trainer
from privaudit.federated.transcripts.transcript import SERVER, Kind, Message
from privaudit.privacy.events import MechanismEvent
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum


@dataclass(frozen=True)
class MaskedSum:
    """What came of one round's sum.

    Attributes:
        total: Of what the survivors sent; None if the round was aborted.
        survivors: Who is in it, in the order of clients.
        messages: The protocol's, and then the sum that the server learned.
        report: For metrics.jsonl: what came of it, who was lost when, what was wrong.
    """

    total: Tensors | None
    survivors: tuple[ClientId, ...]
    messages: tuple[Message, ...]
    report: Mapping[str, Any]


@runtime_checkable
class Masks(Protocol):
    """How uploads are masked; see :class:`privaudit.federated.masked_sum.Masking`."""

    def step(self, parties: int) -> float:
        """Return the step of the grid on which numbers of so many parties lie."""
        ...

    def sum_of(
        self,
        uploads: Mapping[ClientId, Tensors],
        seeds: Seeds,
        index: int,
        streams: Sequence[str],
    ) -> MaskedSum:
        """Sum a round's uploads so that the server learns the sum only."""
        ...


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
        summed = masking.sum_of(sent, at.seeds, at.index, streams)
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
