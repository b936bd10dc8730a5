"""Tensors by name that are there when they are asked for, and take no memory before."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from privaudit.core.tensors import Tensors


class LazyTensors(Tensors):
    """Tensors of known names, each made when it is asked for, and kept by nobody here.

    Args:
        names: In their order.
        make: Returns the tensor of a name.

    Example:
        >>> import torch
        >>> ones = LazyTensors(["w"], lambda name: torch.ones(2))
        >>> "w" in ones, "v" in ones, ones["w"].tolist()
        (True, False, [1.0, 1.0])
    """

    __slots__ = ("_make", "_names")

    def __init__(self, names: Iterable[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._names)})"
