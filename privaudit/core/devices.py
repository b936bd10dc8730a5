"""Devices and memory: what a user chose for a stretch of work, and what a step takes.

What is drawn, sent, kept or stored lies on the CPU. A trainer computes inside of
``torch.device(...)``, so that its new tensors are made where it computes.
"""

import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from privaudit.core.context import set_within
from privaudit.core.errors import ConfigError, shown
from privaudit.core.lazy_torch import Tensor, late, torch

CPU: torch.device = late(lambda: torch.device("cpu"))
DEVICES = "auto, cpu, cuda, cuda:0 or another number, or mps"
_chosen: ContextVar[torch.device | None] = ContextVar("device", default=None)


def find_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is the first CUDA device, or else the CPU.

    Raises:
        ConfigError: It is no device's name, or there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (
        colon and (kind != "cuda" or not number.isdecimal() or len(number) > 3)
    ):
        raise ConfigError(f"There is no device {shown(name)}. Use {DEVICES}.")
    if kind == "cpu":
        return CPU
    here = torch.cuda if kind == "cuda" else torch.mps
    count = here.device_count()
    if int(number or 0) >= count:
        built = "" if kind == "mps" or torch.version.cuda else ", built without CUDA,"
        raise ConfigError(
            f"The device {name} was requested, and torch {torch.__version__}{built} "
            f"sees {count or 'no'} {kind.upper()} device{'s' * (count > 1)} here. Use "
            "--device cpu, or auto to take CUDA where there is one."
        )
    return torch.device(kind, int(number or 0))


@contextmanager
def use_device(device: str | torch.device | None) -> Iterator[torch.device]:
    """Let runs and audits within compute on a device; None leaves what was chosen.

    Names are read, and refused, as by :func:`find_device`.

    Example:
        >>> with use_device("cpu") as device:
        ...     print(device, chosen_device())
        cpu cpu
    """
    if device is None:
        yield chosen_device()
        return
    named = find_device(device) if isinstance(device, str) else device
    if named.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32 is float32, as on the CPU
    with set_within(_chosen, named):
        yield named


def chosen_device() -> torch.device:
    """Return the device that runs and audits compute on: the CPU if none is chosen."""
    return _chosen.get() or CPU


def here() -> torch.device:
    """Return where new tensors are made: a trainer's device while it computes."""
    return torch.empty(0).device


def device_name(device: torch.device) -> str:
    """Return what a device is called by who made it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.machine() if device == CPU else device.type


def moved(value: Any, device: torch.device) -> Any:
    """Return tensors, or what has a ``to``, on a device; also those in collections."""
    if isinstance(value, Mapping):
        return {name: moved(part, device) for name, part in value.items()}
    if type(value) in (tuple, list):  # a named tuple is what it is, and has no ``to``
        return type(value)(moved(part, device) for part in value)
    return value.to(device) if hasattr(value, "to") else value


SHARE_OF_FREE = 0.7
_UNITS = {"B": 1} | {
    f"{letter}{binary}B": (1024 if binary else 1000) ** power
    for power, letter in enumerate("KMGT", 1)
    for binary in ("", "I")
}
Result = TypeVar("Result")
_SIZE = re.compile(
    rf"([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?) ?({'|'.join(_UNITS)})",
    re.IGNORECASE | re.ASCII,
)
_limit: ContextVar[int | None] = ContextVar("memory", default=None)
_checkpointing: ContextVar[bool] = ContextVar("checkpointing", default=False)
_records: ContextVar[int] = ContextVar("records", default=0)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "20GiB" or "500 MB".

    Raises:
        ConfigError: It is no size, or 0.

    Example:
        >>> parse_size("1.5GiB")
        1610612736
    """
    found = _SIZE.fullmatch(text)
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not size:
        raise ConfigError(
            f"{shown(text)} is no amount of memory. Give one such as 20GiB or 500MB."
        )
    return size


@contextmanager
def use_memory(limit: int | str | None) -> Iterator[None]:
    """Let steps within take at most so much memory; None leaves what was chosen.

    The limit, in bytes or as :func:`parse_size` reads it, is for what a step makes,
    beside the frozen model and the records.
    """
    size = parse_size(limit) if isinstance(limit, str) else limit
    with set_within(_limit, size or _limit.get()):
        yield


@contextmanager
def use_checkpointing(on: bool = True) -> Iterator[None]:
    """Let layers within keep only their inputs, and run again for the gradient.

    A step then takes a fraction of the memory and one more forward pass; gradients come
    out the same. False leaves what was chosen.
    """
    with set_within(_checkpointing, on or _checkpointing.get()):
        yield


def is_checkpointing() -> bool:
    """Say whether layers run again for the gradient."""
    return _checkpointing.get() and torch.is_grad_enabled()


@contextmanager
def use_records_at_once(count: int) -> Iterator[None]:
    """Let gradients within be found of at most so many records at once; 0: of all."""
    with set_within(_records, count):
        yield


def records_at_once() -> int:
    """Return of how many records a step finds the gradient at once; 0: of all."""
    return _records.get()


def memory_limit() -> int | None:
    """Return the bytes that a step may take; None where nobody limits it.

    As chosen, or on a GPU 0.7 of what is free. On the CPU there is a limit only where
    one was chosen: what is computed together decides about last bits, and equal seeds
    give equal bytes on equal machines.
    """
    device = chosen_device()
    if _limit.get() is None and device.type == "cuda":
        return int(SHARE_OF_FREE * free_memory(device))
    return _limit.get()


@contextmanager
def as_chosen(limit: int | None, checkpointing: bool) -> Iterator[None]:
    """Choose what :func:`chosen` returned, in another process."""
    with use_memory(limit), use_checkpointing(checkpointing):
        yield


def chosen(parts: int = 1) -> tuple[int | None, bool]:
    """Return each part's limit, if there is one, and whether layers run again."""
    limit = memory_limit()
    return None if limit is None else max(1, limit // parts), _checkpointing.get()


def in_chunks(
    count: int, most: int, run: Callable[[Tensor], Result]
) -> Iterator[Result]:
    """Yield what comes of some rows at a time, as many as memory holds.

    On the CPU ``most`` rows at a time, at least 1. Where memory is limited, ``run``
    gets the first row alone, and is measured.
    """
    from privaudit.core.operations import PeakMemory

    rows, limit = torch.arange(count), memory_limit()
    if count > 1 and limit is not None:
        with PeakMemory() as memory:
            first = run(rows[:1])
        yield first
        fit = max(1, limit // max(1, memory.peak))
        most = fit if chosen_device().type == "cuda" else min(most, fit)
        rows = rows[1:]
    for some in rows.split(most):
        yield run(some)


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU: also what torch keeps for later."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + kept
