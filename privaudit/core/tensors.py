"""Flat, named tensors: the form in which everything is sent, kept and stored.

Kernels of torch that follow the processor in any settings are replaced by portable ones
as this module is imported. MKL computes these functions from the processor's approximate
reciprocals (RCPPS, RSQRTPS), whose bits every maker chooses: a square root is then off by
one unit in the last place on one processor, and not on the next. NumPy's baseline kernels
and glibc's are exact, or the same everywhere.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch, when_imported
from privaudit.core.portable_bits import bits_here

REPLACED: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
}


@lru_cache(maxsize=1)
def replace_kernels() -> Any:
    """Replace the kernels on the CPU, in a process of portable bits; once.

    What is returned holds the replacements as long as it lives; None for native bits.
    """
    if bits_here() == "native":
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are replaced
        for name, function in REPLACED.items():
            compute = partial(_compute, function)
            library.impl(name, compute, "CPU")
            library.impl(f"{name}_", partial(_compute_into, function), "CPU")
            library.impl(f"{name}.out", partial(_compute_into, function), "CPU")
    return library


def _compute(function: Callable[..., Any], x: Tensor) -> Tensor:
    if x.dtype in (torch.float16, torch.bfloat16):
        return _compute(function, x.float()).to(x.dtype)
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    with np.errstate(all="ignore"):  # torch, too, is silent about infinities and NaN
        return torch.from_numpy(np.asarray(function(x.detach().numpy())))


def _compute_into(
    function: Callable[..., Any], x: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Write into ``out``, or else into the tensor itself."""
    result, place = _compute(function, x), x if out is None else out
    if place.shape != result.shape:
        place.resize_(result.shape)
    return place.copy_(result)


if TYPE_CHECKING:
    Tensors = Mapping[str, Tensor]
else:
    Tensors = Mapping  # checks at run time would read what is lazy
Stacked = Mapping[str, Tensor]  # the same, with a leading axis over clients or models

when_imported(replace_kernels)  # whatever computes imports this module


def stack(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    """Stack tensors of equal names and shapes on a new leading axis."""
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def unstack(stacked: Stacked, count: int) -> list[dict[str, Tensor]]:
    """Return the ``count`` members of a stack; an empty stack has empty members."""
    return [
        {name: tensor[index] for name, tensor in stacked.items()}
        for index in range(count)
    ]


def below(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, under the rest of their names."""
    chosen = {n: t for n, t in tensors.items() if n.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in chosen.items()}


def beside(leading: Tensor, tensor: Tensor) -> Tensor:
    """Return numbers of the leading axes as they are multiplied with the whole.

    One number for all stays without axes: it widens no narrower tensor.
    """
    if not leading.ndim:
        return leading
    return leading.reshape(leading.shape + (1,) * (tensor.ndim - leading.ndim))


def numbers_in(stacked: Stacked) -> int:
    """Count the numbers of one member of a stack."""
    return sum(tensor[0].numel() for tensor in stacked.values())


def signature(tensors: Tensors) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Return names, shapes and types: what two parts must share to be stacked."""
    return tuple(
        (name, tuple(tensors[name].shape), str(tensors[name].dtype))
        for name in sorted(tensors)
    )


def alike(*parts: Sequence[Tensors]) -> list[list[int]]:
    """Group positions whose tensors can be stacked, in the order of first sight."""
    groups: dict[object, list[int]] = {}
    for position, entry in enumerate(zip(*parts, strict=True)):
        groups.setdefault(tuple(map(signature, entry)), []).append(position)
    return list(groups.values())


def equal(one: Tensors, other: Tensors) -> bool:
    """Say whether two sets of tensors have the same names and the same numbers."""
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) for name, tensor in one.items()
    )


def distinct(*parts: Sequence[Tensors]) -> tuple[list[int], list[int]]:
    """Return where each different entry first stands, and which of those each one is.

    Tensors that are one object are equal; others are compared by their digests.
    """
    digests: dict[int, tuple[ref[Tensor], str]] = {}

    def name_of(tensor: Tensor) -> str:
        known = digests.get(id(tensor))
        if known is None or known[0]() is not tensor:  # ids of the dead are used again
            digests[id(tensor)] = known = ref(tensor), digest(tensor)
        return known[1]

    first: dict[object, int] = {}
    positions: list[int] = []
    places: list[int] = []
    for position, entry in enumerate(zip(*parts, strict=True)):
        key = tuple(
            tuple((name, name_of(part[name])) for name in sorted(part))
            for part in entry
        )
        if key not in first:
            first[key] = len(positions)
            positions.append(position)
        places.append(first[key])
    return positions, places


def stacks(
    parts: Sequence[Tensors], most: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Yield the parts that are alike, stacked, with their positions.

    At most so many at a time, so that memory does not grow with their number.
    """
    for positions in alike(parts):
        for first in range(0, len(positions), most):
            chunk = positions[first : first + most]
            yield chunk, stack([parts[position] for position in chunk])


def all_finite(tensors: Tensors) -> bool:
    """Say whether no tensor holds a NaN or an infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def digest(tensor: Tensor) -> str:
    """Return the hash of a tensor's type, shape and content."""
    head = f"{tensor.dtype}|{tuple(tensor.shape)}|".encode()
    hashed = hashlib.sha256(head)
    hashed.update(content_of(tensor))
    return hashed.hexdigest()


def content_of(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, in C order, where they lie: it may be a mapped file."""
    if not tensor.numel():  # one of numpy's may have strides that allow no view
        return memoryview(b"")
    content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return content.numpy().data


def at_least_float32(computed: Tensor) -> Tensor:
    """Return what a frozen model computed in the precision of what is learned."""
    return computed.to(torch.promote_types(computed.dtype, torch.float32))


class LazyTensors(Tensors):
    """Tensors of known names, each made when it is asked for, and kept by nobody here.

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


ROUNDED = 0.01  # of a sum over classes: half precision, and five digits of a file


def as_tensor(values: Any) -> Tensor:
    """Return an array, a tensor on any device, or a list, as a tensor on the CPU.

    Raises:
        ConfigError: It is what a model returned around its logits, or holds no numbers.
    """
    if isinstance(values, Tensor):
        return values.detach().cpu()
    parts = values if isinstance(values, tuple) else ()
    if isinstance(values, Mapping) or any(isinstance(one, Tensor) for one in parts):
        raise ConfigError(
            f"A {type(values).__name__} was given in place of a tensor. Of what a model "
            "returns give outputs.logits, or outputs[0]; of several models torch.stack."
        )
    try:
        return torch.as_tensor(np.array(values))
    except (TypeError, ValueError):
        raise ConfigError(
            f"A {type(values).__name__} without numbers, or of rows that differ in length, "
            "was given in place of a tensor. Give numbers: logits, or classes from 0 on."
        ) from None


def are_parts(values: Tensor, whole: int = 1) -> bool:
    """Say whether the numbers in each row [..., classes] are parts of a whole."""
    if (
        not values.ndim
        or not values.numel()
        or values.min() < 0
        or values.max() > whole
    ):
        return False
    sums = values.double().sum(dim=-1)
    return bool(((sums - whole).abs() <= ROUNDED * whole).all())
