"""A trainer that computes on another device; what it takes and gives is on the CPU."""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, TypeVar

import torch

from privaudit.core.devices import CPU, here, moved
from privaudit.core.tensors import Stacked
from privaudit.federated.trainer import Records, Signal, Signals, Task, Trainer

BYTES_AT_ONCE = 2**30  # of features, moved to be asked about
_MARK = "__computes__"
_METHODS = ("start", "start_client", "local_update", "aggregate", "release", "tuning")

Method = TypeVar("Method", bound=Callable[..., Any])


def computes(method: Method) -> Method:
    """Mark a method of a trainer's own as one that computes with the frozen model.

    Those of :class:`~privaudit.federated.trainer.Trainer` need no mark; ``reconstruct``
    sorts what was seen, on the CPU, and calls such methods.
    """
    setattr(method, _MARK, True)
    return method


def on_device(trainer: Trainer, device: torch.device) -> Trainer:
    """Return the trainer as one whose work is done on a device; on the CPU, itself.

    Within its methods new tensors are made on the device, and all that it is handed
    is there, but for tokens of pictures and texts, which follow batch by batch.
    """
    if device == CPU:
        return trainer
    kind: Any = type(trainer)
    methods = {
        name: _computed_there(getattr(kind, name), device)
        for name in dir(kind)
        if name in _METHODS or hasattr(getattr(kind, name), _MARK)
    }
    methods["query"] = _asked_there(kind.query, device)
    there = copy(trainer)
    object.__setattr__(there, "__class__", type(kind.__name__, (kind,), methods))
    return there


def _computed_there(
    method: Callable[..., Any], device: torch.device
) -> Callable[..., Any]:
    def compute(self: Any, *arguments: Any, **named: Any) -> Any:
        if here() == device:
            return method(self, *arguments, **named)
        with torch.device(device):
            result = method(self, *moved(arguments, device), **moved(named, device))
        return moved(result, CPU)

    return compute


def _asked_there(
    query: Callable[..., Iterator[Signals]], device: torch.device
) -> Callable[..., Iterator[Signals]]:
    def ask(
        self: Any,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        if here() == device:
            yield from query(self, task, models, records, want)
            return
        models = moved(dict(models), device)
        for part in _parts(records):
            chunks = query(self, task, models, part.to(device), want)
            while (chunk := _next(chunks, device)) is not None:
                yield moved(dict(chunk), CPU)

    return ask


def _next(chunks: Iterator[Signals], device: torch.device) -> Signals | None:
    """Compute the next signals: the device is chosen until they are there, no longer."""
    with torch.device(device):
        return next(chunks, None)


def _parts(records: Records) -> Iterator[Records]:
    rows = max(1, BYTES_AT_ONCE // max(1, records.features[:1].nbytes))
    if len(records) <= rows:
        yield records
        return
    for chosen in torch.arange(len(records)).split(rows):
        yield records.pick(chosen)
