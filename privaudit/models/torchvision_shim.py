"""Importing open_clip beside a torchvision that was built for another torch.

torchvision from the package index is built for CUDA. Beside a CPU-only torch its
compiled operators do not load, and its import fails with "operator torchvision::nms
does not exist", because it describes two operators to the compiler that only the
compiled part would have declared. Nothing here uses them: declaring them is enough.
"""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# torch leaves these two without types.
_Library: Callable[..., Any] = torch.library.Library
_load_library: Callable[[Path], None] = torch.ops.load_library
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
    """Declare torchvision's two box operators where its compiled part did not."""
    _load_compiled_part()
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library = _Library("torchvision", "FRAGMENT")
            library.define(f"{name}{_SIGNATURE}")
            _declared.append(library)


def _load_compiled_part() -> None:
    """Load what torchvision would load itself, so that it is not declared twice."""
    found = importlib.util.find_spec("torchvision")
    for folder in (found and found.submodule_search_locations) or ():
        for compiled in Path(folder).glob("_C.*"):
            try:
                _load_library(compiled)
            except OSError:
                return
