"""Clients of an adversary's own, trained as a method trains its clients."""

from collections.abc import Sequence

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, stack
from privaudit.federation.rounds import update_clients
from privaudit.federation.trainer import (
    ClientId,
    Cohort,
    LocalResult,
    Records,
    Round,
    Task,
    Trainer,
    start_clients,
)


def train_simulated_clients(
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
    of them may share a name, of their random streams. Shares of noise depend on how
    many ``participants`` there are: by default as many as are simulated.
    """
    kept = stack(start_clients(trainer, task, names, seeds))
    down = {n: t.expand(len(names), *t.shape) for n, t in received.items()}
    at = Round(index, seeds, tuple(participants or names))
    cohort = Cohort.of(names, shards)
    return update_clients(trainer, task, cohort, down, kept, at)
