"""Models behind an interface: what they answer, when not all of it is given away."""

from collections.abc import Iterator
from copy import copy
from typing import Any, Literal

import torch
from torch import Tensor

from privaudit.core.errors import AttackError
from privaudit.core.tensors import Stacked
from privaudit.federated.trainer import Records, Signal, Signals, Task, Trainer
from privaudit.models.interfaces import TaskKind

Answers = Literal["probabilities", "labels"]
SURE = 0.9  # what a bare label is taken to mean: any number that is not all or nothing


def answering(trainer: Trainer, answers: Answers, kind: TaskKind) -> Trainer:
    """Return the method with models of a kind that answer no more than that.

    Shadow models answer alike, so an attack learns what bare labels tell, too.

    Raises:
        AttackError: Its models answer in words, and a label was asked for.
    """
    if answers == "probabilities":
        return trainer
    if kind == "generation":
        raise AttackError(
            "Labels alone were asked of generative models. Use the scenario "
            "prompt-release for them."
        )
    labels_only = copy(trainer)
    mixed = type("LabelsOnly", (_LabelsOnly, type(trainer)), {})
    object.__setattr__(labels_only, "__class__", mixed)
    return labels_only


class _LabelsOnly:
    """A trainer's base whose models say which class is likeliest, and nothing else."""

    def query(
        self: Any,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        """Yield log-probabilities that tell the likeliest class only."""
        for signals in super().query(task, models, records, want):  # type: ignore[misc]
            yield {"log_probabilities": _bare(signals["log_probabilities"])}


def _bare(logs: Tensor) -> Tensor:
    """Return ``SURE`` for the likeliest class, and the rest shared by all others."""
    classes = logs.shape[-1]
    rest = (1 - SURE) / max(classes - 1, 1)
    answer = torch.full_like(logs, rest).log()
    best = logs.argmax(dim=-1, keepdim=True)
    return answer.scatter(-1, best, float(torch.tensor(SURE).log()))
