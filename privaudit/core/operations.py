"""Operations of what is computed, counted: the same on every machine and any day."""

from collections.abc import Callable
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
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
