"""The clients' part of a round: local training, of many clients at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from privaudit.core.devices import CPU, moved
from privaudit.core.errors import TrainingError
from privaudit.core.memory import PeakMemory, memory_limit, use_records_at_once
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, alike, all_finite, stack, unstack
from privaudit.datasets.dialogues import PADDING
from privaudit.federated.trainer import (
    ClientId,
    Cohort,
    Events,
    LocalResult,
    Records,
    Round,
    Task,
    Trainer,
)
from privaudit.federated.trainer_abilities import start_clients
from privaudit.privacy.trace import ClientTrace, Trace

OPTIMIZER = "optimizer/"  # before the names of what optimisers remember


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
    :func:`privaudit.federated.batches.epochs_of_batches` runs all of them.
    """
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
    trainer: Trainer,
    task: Task,
    inputs: Sequence[ClientInput],
    at: Round,
    traced: bool,
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
    slots = {
        name.removeprefix(OPTIMIZER): tensor
        for name, tensor in kept.items()
        if name.startswith(OPTIMIZER)
    }
    own_state = without_slots(kept)
    at = replace(at, slots=slots)
    result = trainer.local_update(task, cohort, received, own_state, at)
    remembered = {OPTIMIZER + name: t for name, t in moved(slots, CPU).items()}
    return replace(result, kept={**result.kept, **remembered})


def train_stand_ins(
    trainer: Trainer,
    task: Task,
    received: Tensors,
    names: Sequence[ClientId],
    shards: Sequence[Records],
    seeds: Seeds,
    index: int,
    participants: Sequence[ClientId] = (),
) -> LocalResult:
    """Train an adversary's own clients for a round, all from what one client received.

    What a client keeps to itself is as it starts, by the adversary's seeds. Several
    stand-ins may share a name, of their random streams. Shares of noise depend on how
    many ``participants`` there are: by default as many as stand-ins.
    """
    kept = stack(start_clients(trainer, task, names, seeds))
    down = {n: t.expand(len(names), *t.shape) for n, t in received.items()}
    at = Round(index, seeds, tuple(participants or names))
    cohort = Cohort.of(names, shards)
    return update_clients(trainer, task, cohort, down, kept, at)


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
