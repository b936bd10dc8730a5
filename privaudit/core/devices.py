"""Devices: named by a user, looked for once, and chosen for a stretch of work.

What is drawn, sent, kept or stored lies on the CPU. A trainer computes inside of
``torch.device(...)``, so that its new tensors are made where it computes.
"""

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from privaudit.core.errors import ConfigError, shown

CPU = torch.device("cpu")
DEVICES = "auto, cpu, cuda, cuda:0 or another number, or mps"
_chosen: ContextVar[torch.device] = ContextVar("device", default=CPU)


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
    token = _chosen.set(named)
    if named.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32 is float32, as on the CPU
    try:
        yield named
    finally:
        _chosen.reset(token)


def chosen_device() -> torch.device:
    """Return the device that runs and audits compute on: the CPU if none is chosen."""
    return _chosen.get()


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
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(moved(part, device) for part in value)
    return value.to(device) if hasattr(value, "to") else value
