"""Asking models: what each of many says about each of many records."""

from collections.abc import Mapping, Sequence, Sized
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.tensors import Stacked, Tensors, stacks
from privaudit.datasets.records import ClientId
from privaudit.federated.trainer import Records, Round, Task, Trainer

MODELS_AT_ONCE = 128


def ask(
    trainer: Trainer, task: Task, models: Stacked, records: Records
) -> Float[Tensor, "models records classes"]:
    """Return every model's log-probabilities for every record."""
    chunks = [
        signals["log_probabilities"] for signals in trainer.query(task, models, records)
    ]
    return torch.cat(chunks, dim=1)


def ask_each(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> Float[Tensor, "models records classes"]:
    """Return the same for models of any shapes: those alike are asked together."""
    answers: dict[int, Tensor] = {}
    for positions, stacked in stacks(models, MODELS_AT_ONCE):
        stacked_answers = ask(trainer, task, stacked, records)
        answers.update(zip(positions, stacked_answers, strict=True))
    return torch.stack([answers[i] for i in range(len(models))])


@runtime_checkable
class CountsQueries(Protocol):
    """A trainer whose clients pay for every answer."""

    def model_queries(self, records: int) -> int:
        """Return how many a client with so many records makes in a round.

        One query is one record, answered by one model.
        """
        ...


def queries_of(
    trainer: Trainer, shards: Mapping[ClientId, Sized], at: Round
) -> int | None:
    """Return the queries of all participants of a round; None if nobody counts."""
    if not isinstance(trainer, CountsQueries):
        return None
    return sum(trainer.model_queries(len(shards[c])) for c in at.participants)
