"""Importing open_clip beside a torchvision that was built for another torch.

torchvision from the package index is built for CUDA. Beside a CPU-only torch its
compiled operators do not load, and its import fails with "operator torchvision::nms
does not exist", because it describes two operators to the compiler that only the
compiled part would have declared. Nothing here uses them: declaring them is enough.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_MISSING = "operator torchvision::nms does not exist"
_Library: Callable[..., Any] = torch.library.Library  # torch leaves it without types
# Declarations vanish with the object that made them.
_declared: list[Any] = []


def import_open_clip() -> ModuleType:
    """Import open_clip, after mending what keeps torchvision from importing.

    Use it instead of ``import open_clip``; the first call must come before anything
    else imports torchvision.
    """
    declare_missing_operators()
    return importlib.import_module("open_clip")


def declare_missing_operators() -> None:
    """Import torchvision; declare its two box operators only if it misses them.

    A torchvision whose compiled part loads declares them itself, and a second
    declaration would abort the process.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # who needs it says so
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
        _declare()
        _forget_half_imported()
        importlib.import_module("torchvision")


def _declare() -> None:
    for name in _OPERATORS:
        library = _Library("torchvision", "FRAGMENT")
        library.define(f"{name}{_SIGNATURE}")
        _declared.append(library)


def _forget_half_imported() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "torchvision":
            del sys.modules[name]
