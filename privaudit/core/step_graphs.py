"""One launch for many kernels: what steps compute on CUDA, captured as a graph."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from privaudit.core.context import set_within
from privaudit.core.devices import is_checkpointing
from privaudit.core.errors import PrivauditWarning

Run = Callable[[Tensor], Tensor]
_step: ContextVar[set["StepGraph"] | None] = ContextVar("step", default=None)


@contextmanager
def one_step() -> Iterator[None]:
    """Say that what is computed within is differentiated once; a step in it is part of it."""
    outer = _step.get()
    with set_within(_step, set() if outer is None else outer):
        yield


class StepGraph:
    """A function of one tensor, and its derivative, as CUDA graphs of equal results.

    A GPU computes the kernels of a small step faster than a CPU launches them one by
    one. They are captured when two steps of one shape follow one another, for the last
    such shape, and keep its memory. Anything else is computed as it is written: on
    other devices, outside of :func:`one_step`, a second call in a step (the first one's
    numbers are still needed), with checkpointing, and where operations are counted.

    Args:
        run: Differentiable; depends on the tensor and on constants alone.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._before: torch.Size | None = None
        self._captured: tuple[torch.Size | None, Run] = None, run

    def __call__(self, given: Tensor) -> Tensor:
        """Return what the function returns."""
        step = _step.get()
        if step is None or self in step or not _can_capture(given):
            return self._run(given)
        step.add(self)
        follows, self._before = given.shape == self._before, given.shape
        if follows and given.shape != self._captured[0]:
            self._captured = given.shape, _captured(self._run, given)
        if given.shape != self._captured[0]:
            return self._run(given)
        # The graph leaves its gradient where the next one will be: this copies it.
        return self._captured[1](given * 1)


def _can_capture(given: Tensor) -> bool:
    computes_once = not is_checkpointing() and _get_current_dispatch_mode() is None
    differentiates = given.requires_grad and torch.is_grad_enabled()
    return _is_on_cuda(given) and differentiates and computes_once


def _is_on_cuda(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _captured(run: Run, given: Tensor) -> Run:
    """Return a function as graphs; as it is, with a warning, where that fails."""
    example = given.detach().clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            # Warm-up and capture, each on a stream of its own, share the example.
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
            graphs: Any = torch.cuda.make_graphed_callables(run, (example,))
    except RuntimeError as error:
        warnings.warn(
            f"No CUDA graph could be made of a step ({error}). Its kernels are launched "
            "one by one: slower, and with the same results.",
            PrivauditWarning,
            stacklevel=2,
        )
        return run
    return cast(Run, graphs)
