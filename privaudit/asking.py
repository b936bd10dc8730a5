"""Asking models: what each of many says about each of many records."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.tensors import Stacked, Tensors, stacks
from privaudit.trainer import PublicTask, Records, Trainer

MODELS_AT_ONCE = 128


def ask(
    trainer: Trainer, task: PublicTask, models: Stacked, records: Records
) -> Float[Tensor, "models records classes"]:
    """Return every model's log-probabilities for every record."""
    chunks = [
        signals["log_probabilities"] for signals in trainer.query(task, models, records)
    ]
    return torch.cat(chunks, dim=1)


def ask_each(
    trainer: Trainer, task: PublicTask, models: Sequence[Tensors], records: Records
) -> Float[Tensor, "models records classes"]:
    """Return the same for models of any shapes: those alike are asked together."""
    answers: dict[int, Tensor] = {}
    for positions, stacked in stacks(models, MODELS_AT_ONCE):
        some = ask(trainer, task, stacked, records)
        answers.update(zip(positions, some, strict=True))
    return torch.stack([answers[i] for i in range(len(models))])
