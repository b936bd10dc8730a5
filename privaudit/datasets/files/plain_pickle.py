"""Pickles read as data: arrays, bytes, texts, numbers, lists and dicts.

A pickle is a program for a small machine, and two of its steps import and call whatever
the pickle names. Here its steps are gone through first, and are counted and held to a
list; then Python's own reader does them, with the reader's constructors in place of
whatever is named. Nothing is imported and nothing of the pickle's is called.

The first pass is what bounds memory and time. Python's reader makes a table as long as
the largest number by which something is put aside, and hashes a tuple of tuples by
recursion, each time anew: such a key ends the process, or never ends.

Of arrays, stand-ins take the place of numpy's own constructors, over the bytes there.

Source: the steps as documented in the standard library's pickletools, protocols 0 to 5;
numpy's ``ndarray.__reduce__`` and ``dtype.__reduce__``, as they write protocols 0 to 4: a
call without content, and a state of shape, type and bytes; in protocol 5 one call with
all of it.
"""

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from privaudit.core.errors import ConfigError, shown
from privaudit.core.limits import check_limit
from privaudit.core.storage import Array

LONGEST_NAME = 512  # characters; those of classes in TorchScript take some 100
Construct = Callable[..., Any]
Constructors = Mapping[str, Construct] | Callable[[str], Construct | None]
_DAMAGE = (
    ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError,
    RecursionError, EOFError, BufferError, pickle.UnpicklingError,
)  # fmt: skip


class Stateful:
    """Base of what constructors return that is no plain value.

    Python's reader would write a state into any other object's attributes.
    """

    def __setstate__(self, state: Any) -> None:
        self.set_state(state)

    def set_state(self, state: Any) -> None:
        """Take the state; raise ValueError where it is not one. By default none is."""
        raise TypeError(f"a state for a {type(self).__name__}")


class Named(type):
    """A name of the pickle's: a class of its own, as only classes are made anew.

    Attributes:
        name: As MODULE.NAME.
        make: What is called in its place.
    """

    name: str
    make: Construct

    def __new__(cls, name: str, construct: Construct) -> "Named":
        """Return one whose calls are answered by ``construct``."""

        def make(*arguments: Any) -> Any:
            return _harmless(construct(*arguments))

        def new(_: Any, *arguments: Any) -> Any:
            return make(*arguments)

        held = {"name": name, "make": staticmethod(make), "__new__": new}
        return super().__new__(cls, "Named", (), held)

    def __init__(cls, *_: Any) -> None:
        super().__init__("Named", (), {})

    def __call__(cls, *arguments: Any) -> Any:
        """Return what is made in place of calling it."""
        return cls.make(*arguments)

    def __setattr__(cls, *_: Any) -> None:
        """Refuse states, which would be set so."""
        raise TypeError("a state for a name")


def read_plain_pickle(
    content: bytes,
    what: str,
    constructors: Constructors,
    stored: Callable[[Any], Any] | None = None,
) -> Any:
    """Return what a pickle holds, without running anything of it.

    Strings of Python 2 come back as bytes. Lists and dicts may hold themselves, so
    what walks through them has to know its depth.

    Args:
        content: The pickle, within the bounds of its file.
        what: It is, in words, for errors.
        constructors: What is made in place of calling MODULE.NAME, by that name.
        stored: Returns what lies outside of the pickle, by its identifier: a flat tuple
            of plain values and :class:`Named`.

    Raises:
        LimitError: It has too many steps, each of which may make an object.
        ConfigError: It is damaged, or holds something else; the text names it.
    """
    try:
        _check_steps(content, what)
        return _StandInReader(content, what, constructors, stored).load()
    except ConfigError:
        raise
    except _DAMAGE as error:
        reason = shown(str(error)) if str(error) else type(error).__name__
        raise ConfigError(
            f"{what} is a damaged pickle ({reason}): nothing of it was run. Get the "
            "file again."
        ) from None


def _refuse(what: str, does: str) -> None:
    raise ConfigError(
        f"{what} {does}, and of pickles only arrays, bytes, texts, numbers, lists and "
        "dicts are read: nothing of it was run. If its maker is known, save it in "
        "another form."
    )


def _check_steps(content: bytes, what: str) -> None:
    """Go through a pickle's steps with the types that they leave on the stack.

    Source: the stack effects that pickletools declares, as its ``dis`` follows them.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for count, (step, argument, _) in enumerate(pickletools.genops(content)):
        check_limit("entries", count, what)
        if step.name not in _STEPS:
            _refuse(what, f"has a step {step.name}")
        if isinstance(argument, int) and abs(argument) >= 2**63:
            raise OverflowError("a number of more than 64 bits")
        after = step.stack_after
        if step.name in _PUTS:
            place = len(memo) if argument is None else int(argument)
            if place > count:
                raise ValueError("it puts aside more than it has")
            memo[place] = stack[-1]
            after = [stack[-1]] if after else []
        elif step.name in _GETS:
            after = [memo[int(argument or 0)]]
        _take(step, stack)
        stack += after
    if stack:
        raise ValueError("it does not end with one object")


def _take(step: pickletools.OpcodeInfo, stack: list[Any]) -> None:
    """Take from the stack what a step takes, and look at the keys among it."""
    before = step.stack_before
    taken, items = len(before), []
    to_mark = step.name == "POP" and stack[-1] is pickletools.markobject
    if pickletools.markobject in before or to_mark:
        while (item := stack.pop()) is not pickletools.markobject:
            items.append(item)
        taken = 0 if to_mark else before.index(pickletools.markobject)
    elif step.name == "SETITEM":
        items = stack[:-3:-1]
    if len(stack) < taken or pickletools.markobject in stack[len(stack) - taken :]:
        raise IndexError("it takes more than there is")
    if step.name in _FILLING and (len(items) % 2 or not _KEYS.issuperset(items[1::2])):
        raise TypeError("a key that is neither a text nor a number")
    del stack[len(stack) - taken :]


class _StandInReader(pickle.Unpickler):
    """Python's reader, in which names are the reader's constructors."""

    def __init__(
        self,
        content: bytes,
        what: str,
        constructors: Constructors,
        stored: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(io.BytesIO(content), fix_imports=False, encoding="bytes")
        self._what, self._stored = what, stored
        self._find = constructors if callable(constructors) else dict(constructors).get
        self._named: dict[str, Named] = {}  # a class takes 3 kB: one for each name

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for a name that the reader knows."""
        if len(module) + len(name) > LONGEST_NAME:
            raise ValueError(f"a name of more than {LONGEST_NAME} characters")
        full = f"{module}.{name}"
        if full in self._named:
            return self._named[full]
        construct = self._find(full)
        if construct is None:
            _refuse(self._what, f"asks for {shown(full)}")
            return None
        return self._named.setdefault(full, Named(full, construct))

    def persistent_load(self, identifier: Any) -> Any:
        """Return what lies outside of the pickle."""
        if self._stored is None:
            _refuse(self._what, "asks for what lies outside of it")
            return None
        return _harmless(self._stored(_flat(identifier)))


def _harmless(made: Any) -> Any:
    """Return what was made, into whose attributes no state can be written."""
    if made is not None and not isinstance(made, (Stateful, *_PLAIN)):
        raise TypeError(f"a {type(made).__name__} in place of what is named")
    return made


def _flat(identifier: Any) -> tuple[Any, ...]:
    """Refuse identifiers of more than plain values, whose text could be endless."""
    if type(identifier) is not tuple or len(identifier) > 8:
        raise TypeError("an identifier that is no short tuple")
    if not all(value is None or type(value) in _FLAT for value in identifier):
        raise TypeError("an identifier that holds more than plain values")
    return identifier


_FLAT = (str, bytes, int, float, bool, Named)
_PLAIN = (str, bytes, int, float, list, dict, tuple, Named)
_PUTS, _GETS = (
    {f"{how}{act}" for how in ("", "BIN", "LONG_BIN")} for act in ("PUT", "GET")
)
_PUTS.add("MEMOIZE")
_FILLING = {"DICT", "SETITEM", "SETITEMS"}
_KEYS = {
    pickletools.pyint, pickletools.pyinteger_or_bool, pickletools.pylong,
    pickletools.pystring, pickletools.pybytes_or_str, pickletools.pybytes,
    pickletools.pyunicode,
}  # fmt: skip
_STEPS = _PUTS | _GETS | _FILLING | {
    "PROTO", "FRAME", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE",
    "EMPTY_LIST", "EMPTY_DICT", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1",
    "LONG4", "DUP", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "MARK", "POP", "POP_MARK", "TUPLE", "LIST",
    "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "GLOBAL", "STACK_GLOBAL",
    "REDUCE", "NEWOBJ", "BUILD", "BINPERSID",
}  # fmt: skip

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
