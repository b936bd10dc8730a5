"""The clients' part of a round: local training, of many clients at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from privaudit.core.errors import TrainingError
from privaudit.core.tensors import Tensors, alike, all_finite, stack, unstack
from privaudit.federated.stacking import ClientInput, Stacking
from privaudit.federated.trainer import (
    Cohort,
    Events,
    LocalResult,
    Round,
    Task,
    Trainer,
)
from privaudit.privacy.trace import ClientTrace, Trace


@dataclass(frozen=True)
class Trained:
    """A client after its local training.

    Attributes:
        sent: What it sends to the server.
        kept: Its private state.
        loss: Its mean training loss.
        events: The privacy mechanisms as its cohort applied them.
        trace: What its mechanisms did; for the run's owner only.
    """

    sent: Tensors
    kept: Tensors
    loss: float
    events: Events
    trace: ClientTrace


def train_places(
    trainer: Trainer,
    task: Task,
    places: Sequence[ClientInput],
    at: Round,
    stacking: Stacking,
    traced: bool,
) -> list[Trained]:
    """Train clients whose tensors have one signature together, in chunks.

    Raises:
        TrainingError: A loss or a tensor is not finite.
    """
    done: dict[int, Trained] = {}
    received = [place.received for place in places]
    for positions in alike(received, [place.kept for place in places]):
        size = stacking.size(trainer, task, [places[i] for i in positions], at)
        for first in range(0, len(positions), size):
            chunk = positions[first : first + size]
            alone = _train_cohort(trainer, task, [places[i] for i in chunk], at, traced)
            done.update(zip(chunk, alone, strict=True))
    results = [done[i] for i in range(len(places))]
    _refuse_non_finite(places, results, at.index)
    return results


def _train_cohort(
    trainer: Trainer,
    task: Task,
    places: Sequence[ClientInput],
    at: Round,
    traced: bool,
) -> list[Trained]:
    streams = [place.stream for place in places]
    cohort = Cohort.of(streams, [place.shard for place in places])
    received = stack([place.received for place in places])
    private_state = stack([place.kept for place in places])
    trace = Trace(cohort.sizes)
    at = replace(at, trace=trace if traced else None)
    return _split(
        trainer.local_update(task, cohort, received, private_state, at), trace
    )


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
    places: Sequence[ClientInput], results: Sequence[Trained], index: int
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
