"""A trainer that computes on another device; what it takes and gives is on the CPU."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from privaudit.core.devices import CPU, here, moved
from privaudit.core.lazy_torch import torch
from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import ANSWERS, Records, Signals, Task, Trainer, Want

BYTES_AT_ONCE = 2**30  # of features, moved to be asked about
_MARK = "__computes__"
_METHODS = ("start", "start_client", "local_update", "aggregate", "release", "tuning")

Method = TypeVar("Method", bound=Callable[..., Any])


def computes(method: Method) -> Method:
    """Mark a method of a trainer's own as one that computes with the frozen model.

    Those of :class:`~privaudit.federation.trainer.Trainer` need no mark; ``reconstruct``
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
    there: Trainer = object.__new__(class_on_device(type(trainer), device))
    vars(there).update(vars(trainer))
    return there


@cache
def class_on_device(kind: Any, device: torch.device) -> Any:
    """Return the class of trainers whose work is done on a device: one for each kind.

    It is a subclass of the trainer's own, which stays as it is, and has its name, by
    which a run is recorded. Its ``computes_on`` is the device, and these methods have a
    wrapper: those in ``_METHODS``, ``query``, and what is marked by :func:`computes`.

    A class it must be: ``single_step``, ``with_settings`` and the like copy a trainer by
    ``dataclasses.replace``, which builds ``type(self)`` anew, without what an object
    around it knows. And methods that call each other on ``self`` find the wrapped ones.
    """
    methods: dict[str, Any] = {
        name: _computed_there(getattr(kind, name), device)
        for name in dir(kind)
        if name in _METHODS or hasattr(getattr(kind, name), _MARK)
    }
    methods["query"] = _asked_there(kind.query, device)
    return type(kind.__name__, (kind,), {**methods, "computes_on": device})


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
        self: Any, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
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
