"""Uploads as an adversary inverts them, and what stand-ins would have sent instead."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.auditing.attack import Adversary
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.federation import count_participants
from privaudit.federated.local_training import train_stand_ins
from privaudit.federated.trainer import ClientId, Records
from privaudit.federated.trainer_abilities import ShowsChoices
from privaudit.federated.weighted_mean import COORDINATES, WEIGHT, update_deltas

AT_ONCE = 64  # stand-ins that train together
T = TypeVar("T")


@dataclass(frozen=True)
class SeenUpload:
    """What one client sent in a round, or the sum of several, beside what it received.

    Attributes:
        sent: Tensors by name, weights included.
        received: What training began from.
        clients: How many are in it: 1, or more for a sum.
    """

    round: int
    sent: Tensors
    received: Tensors
    clients: int

    @property
    def records(self) -> float | None:
        """How many records it is a mean over; None where it does not say."""
        return float(self.sent[WEIGHT]) if WEIGHT in self.sent else None

    @cached_property
    def delta(self) -> Float[Tensor, " numbers"]:
        """What the upload moved, its weight divided out, as one vector."""
        return self.rows({name: self.sent[name].unsqueeze(0) for name in self.sent})[0]

    def rows(self, sent: Stacked) -> Float[Tensor, "k numbers"]:
        """Return what uploads like this one moved, as one vector each."""
        deltas = update_deltas(sent, self.received)
        flat = [
            deltas[n].unsqueeze(1).flatten(1).double()
            for n in sorted(deltas.keys() & self.sent.keys())
        ]
        return torch.cat(flat, dim=1)

    def place(self, name: str) -> slice | None:
        """Return where a tensor's numbers stand in a row of what moved.

        None where not all that was received is sent back: as tensors of the same names,
        or as one row of them in the order of names.
        """
        first, found = 0, None
        for one in sorted(self.received.keys() - {COORDINATES}):
            last = first + self.received[one].numel()
            found, first = (slice(first, last) if one == name else found), last
        return found if first == len(self.delta) else None

    def replay(
        self,
        adversary: Adversary,
        clients: Sequence[ClientId],
        shards: Sequence[Records],
    ) -> Float[Tensor, "clients numbers"]:
        """Return what clients with these records would move, from the same start.

        They train as the method says, with all local steps, clipping and noise of their
        own. What a client keeps to itself is as it starts.
        """
        trainer, task = adversary.trainer, adversary.task
        if isinstance(trainer, ShowsChoices):
            trainer = trainer.with_choices_of(self.sent)
        count = count_participants(len(task.clients), adversary.participation)
        parts = []
        for first in range(0, len(shards), AT_ONCE):
            names = clients[first : first + AT_ONCE]
            some = [replace(s, views=None) for s in shards[first : first + AT_ONCE]]
            result = train_stand_ins(
                trainer, task, self.received, names, some, adversary.seeds, self.round,
                task.clients[:count],
            )  # fmt: skip
            parts.append(self.rows(result.sent))
        return torch.cat(parts)

    def same_start(self, other: "SeenUpload") -> bool:
        """Say whether stand-ins would move alike in both."""
        return self.sent.keys() == other.sent.keys() and all(
            torch.equal(tensor, other.received[name])
            for name, tensor in self.received.items()
        )


def seen_uploads(adversary: Adversary, client: ClientId, most: int) -> list[SeenUpload]:
    """Return a client's uploads, evenly spaced, at most so many; or sums with it.

    Raises:
        ViewError: The adversary sees neither.
    """
    view = adversary.view
    if not view.sees_updates_of(client) and view.last_sum is not None:
        return [
            SeenUpload(s.index, dict(s.total), s.broadcast, s.parties)
            for s in _spaced(view.sums, most)
        ]
    return [
        SeenUpload(m.round, m.tensors, view.received_in(client, m.round).tensors, 1)
        for m in _spaced(view.updates_of(client), most)
    ]


def _spaced(found: Sequence[T], most: int) -> list[T]:
    count = min(most, len(found))
    return [found[len(found) * number // count] for number in range(count)]
