"""Arrays in pickles: what stands in for numpy's own constructors, over the bytes there.

Source: numpy's ``ndarray.__reduce__`` and ``dtype.__reduce__``, as they write protocols
0 to 4: a call without content, and a state of shape, type and bytes; in protocol 5 one
call with all of it.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from privaudit.core.arrays import Array
from privaudit.datasets.files.plain_pickle import Construct, Stateful

_KIND = re.compile(r"[|<>=]?[biuf][1248]")  # plain numbers, of 64 bits at most
_ORDERS: Mapping[str, Any] = {order: order for order in "|<>="}
MOST_AXES = 8
MOST_FIELDS = 9  # of a state: each taking of it copies it


def _short(state: Any) -> tuple[Any, ...]:
    if type(state) is not tuple or len(state) > MOST_FIELDS:
        raise ValueError("a state that is no short tuple")
    return state


class PickledType(Stateful):
    """A type of plain numbers, such as "u1"."""

    def __init__(self, name: Any, *flags: Any) -> None:
        text = _text(name)
        if not _KIND.fullmatch(text):
            raise ValueError(f"an array of {text!r}, and only plain numbers are read")
        self.dtype = np.dtype(text)

    def set_state(self, state: Any) -> None:
        """Take the order of bytes; all else of the state is for types of other kinds."""
        _, order, *fields = _short(state)
        if any(part is not None for part in fields[:3]):
            raise ValueError("an array of records, and only plain numbers are read")
        self.dtype = self.dtype.newbyteorder(_ORDERS[_text(order)])


class PickledArray(Stateful):
    """An array whose content follows as its state.

    Attributes:
        array: It; empty until then. It shares the memory of the pickle's bytes.
    """

    def __init__(self, *start: Any) -> None:
        self.array: Array = np.zeros(0, np.uint8)

    def set_state(self, state: Any) -> None:
        """Take shape, type, order and bytes, which have to be as many as these say."""
        _, shape, kind, by_columns, content = _short(state)
        self._fill(content, kind, shape, "F" if by_columns is True else "C")

    @classmethod
    def of_buffer(
        cls, content: Any, kind: Any, shape: Any, order: Any
    ) -> "PickledArray":
        """Return one whose content is there already, as protocol 5 has it."""
        made = cls()
        made._fill(content, kind, shape, "F" if _text(order) == "F" else "C")
        return made

    def _fill(
        self, content: Any, kind: Any, shape: Any, order: Literal["C", "F"]
    ) -> None:
        plain = isinstance(kind, PickledType) and isinstance(content, bytes | bytearray)
        if not plain or type(shape) is not tuple or len(shape) > MOST_AXES:
            raise ValueError("an array of objects, and only plain numbers are read")
        if any(type(length) is not int or length < 0 for length in shape):
            raise ValueError("an array whose shape is none")
        declared = math.prod(shape) * kind.dtype.itemsize
        if declared != len(content):
            raise ValueError(
                f"an array declares {declared:,} bytes, and has {len(content):,}"
            )
        self.array = np.frombuffer(content, kind.dtype).reshape(shape, order=order)


def _text(value: Any) -> str:
    """Return a short text, which Python 2 writes as bytes."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if not isinstance(value, str) or len(value) > 8:
        raise ValueError("an array whose type is no short text")
    return value


def _named_class(*_: Any) -> None:
    """Stand in for the class itself, which is only ever named as an argument."""
    raise ValueError("an array that is made without its type")


def _no_bytes() -> bytes:
    """Return what old protocols write empty bytes as a call for."""
    return b""


class _Latin1:
    """Bytes that Python 3 writes as a text in old protocols.

    Several calls may name one text, so what they make together is bounded by the
    pickle's own size.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self, text: Any, coding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise ValueError("bytes in a coding that numpy does not write")
        self._left -= len(text)
        if self._left < 0:
            raise ValueError("it makes more bytes than it has")
        return text.encode("latin-1")


def array_constructors(content: bytes) -> Mapping[str, Construct]:
    """Return what is made in place of numpy's constructors in one pickle.

    Args:
        content: The pickle, whose length bounds what is made of texts.
    """
    return {
        "numpy.core.multiarray._reconstruct": PickledArray,
        "numpy._core.multiarray._reconstruct": PickledArray,
        "numpy.core.numeric._frombuffer": PickledArray.of_buffer,
        "numpy._core.numeric._frombuffer": PickledArray.of_buffer,
        "numpy.ndarray": _named_class,
        "numpy.dtype": PickledType,
        "_codecs.encode": _Latin1(len(content)),
        "__builtin__.bytes": _no_bytes,
        "builtins.bytes": _no_bytes,
    }
