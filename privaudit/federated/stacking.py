"""How many clients train together: as many as are asked for, and as memory holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from privaudit.core.memory import PeakMemory, is_measured, memory_limit
from privaudit.core.tensors import Tensors, bytes_of, stack
from privaudit.federated.trainer import (
    ClientId,
    Cohort,
    Records,
    Round,
    Task,
    Trainer,
)
from privaudit.models.interfaces import Classifier


@dataclass(frozen=True)
class ClientInput:
    """A client before its local training.

    Attributes:
        client: Who.
        stream: The name of its random streams.
        shard: The records it trains on.
        received: What the server sent it.
        kept: Its private state.
    """

    client: ClientId
    stream: str
    shard: Records
    received: Tensors
    kept: Tensors


@dataclass
class Stacking:
    """How many clients train together.

    Attributes:
        most: As many as are asked for.
        fit: As many as memory holds; None until one client's step was measured.
    """

    most: int
    fit: int | None = None

    def size(
        self, trainer: Trainer, task: Task, places: Sequence[ClientInput], at: Round
    ) -> int:
        """Return how many of these clients train together, at least 1.

        Where there is a limit, a GPU or a model of some size, the first call runs one
        local step of the client with the most records, and forgets what came of it.
        """
        most = min(self.most, len(places))
        if self.fit is None and most > 1 and is_measured(frozen_bytes(task)):
            largest = max(places, key=lambda place: len(place.shard))
            taken = memory_of_step(trainer, task, largest, at)
            self.fit = max(1, memory_limit() // max(1, taken))
        return max(1, min(most, self.fit or most))


def memory_of_step(trainer: Trainer, task: Task, place: ClientInput, at: Round) -> int:
    """Return the bytes that one client's local step takes at most, beside its records.

    A trainer that does not plan its steps by :func:`privaudit.federated.batches
    .epochs_of_batches` runs all of them.
    """
    cohort = Cohort.of([place.stream], [place.shard])
    at = replace(at, trace=None, steps=1)
    with PeakMemory() as memory:
        trainer.local_update(
            task, cohort, stack([place.received]), stack([place.kept]), at
        )
    return memory.peak


def frozen_bytes(task: Task) -> int:
    """Return the bytes of a task's frozen weights, as far as its model tells."""
    if isinstance(task.backbone, Classifier):
        return task.backbone.frozen_bytes
    return bytes_of(task.backbone.weights)
