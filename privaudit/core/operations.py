"""What is computed, counted: operations and bytes, the same on every machine and day."""

from collections.abc import Callable
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def count_operations(compute: Callable[[], object]) -> int:
    """Return the floating-point operations of what a function computes.

    Of matrix products, convolutions and attention, forwards and backwards; others are
    not counted, nor an LSTM's, nor what other libraries than torch compute.
    """
    # The processor's fused attention is unknown to the counter; spelled out it is not.
    with sdpa_kernel(SDPBackend.MATH), _Counter() as counter:
        compute()
    return counter.total


class _Counter(TorchDispatchMode):
    """Adds up by torch's own formulas.

    Not torch's FlopCounterMode, which hooks into modules to tell their parts, and fails
    where a gradient is taken by a module's own input.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        found = func(*args, **kwargs)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=found))
        return found


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that are made while it is entered.

    Tensor by tensor, on any device: no allocator's habits count, nor workspace that an
    operation takes and returns.

    Attributes:
        now: Bytes of the tensors that were made and are alive.
        peak: The most that they were at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}  # of live storages that were made here

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and count what it made."""
        result = operation(*args, **(kwargs or {}))
        taken = {_storage(part) for part in _tensors((args, kwargs))}
        for part in _tensors(result):
            key = _storage(part)
            if key not in taken and key not in self._sizes:
                self._count(key, part.untyped_storage())
        return result

    def _count(self, key: int, storage: torch.UntypedStorage) -> None:
        self._sizes[key] = storage.nbytes()
        self.now += self._sizes[key]
        self.peak = max(self.peak, self.now)
        finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Tensor]:
    return [part for part in tree_leaves(value) if isinstance(part, Tensor)]
