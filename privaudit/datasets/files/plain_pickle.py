"""What a pickle holds, read as data: arrays, bytes, texts, numbers, lists and dicts.

A pickle is a program for a small machine, and two of its steps import and call whatever
the pickle names. Here each step is interpreted by this module: a name is looked up in
the reader's own table of constructors, none of which is the named object, and a name
that is not there ends the reading. Nothing is imported and nothing of the pickle's is
called.

Source: the steps as documented in the standard library's pickletools, protocols 0 to 5.
"""

import pickletools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from privaudit.core.errors import ConfigError, shown
from privaudit.core.limits import check_limit

LONGEST_NAME = 512  # characters; those of classes in TorchScript take some 100
Construct = Callable[..., Any]
Constructors = Mapping[str, Construct] | Callable[[str], Construct | None]
_DAMAGE = (
    ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError,
    RecursionError,
)  # fmt: skip


@runtime_checkable
class Stateful(Protocol):
    """What one of the reader's constructors returns, if a state may follow."""

    def set_state(self, state: Any) -> None:
        """Take the state; raise ValueError where it is not one."""
        ...


@dataclass(frozen=True)
class Named:
    """A name of the pickle's, and what is made in place of calling it."""

    name: str
    construct: Construct


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
    machine = _Machine(what, constructors, stored)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            check_limit("entries", count, what)
            machine.step(opcode.name, argument)
        return machine.result()
    except ConfigError:
        raise
    except _DAMAGE as error:
        reason = shown(str(error)) if str(error) else type(error).__name__
        raise ConfigError(
            f"{what} is a damaged pickle ({reason}): nothing of it was run. Get the "
            "file again."
        ) from None


class _Machine:
    """The stack, the marks on it, and what was put aside."""

    def __init__(
        self,
        what: str,
        constructors: Constructors,
        stored: Callable[[Any], Any] | None,
    ) -> None:
        self._what = what
        self._find = constructors if callable(constructors) else dict(constructors).get
        self._stored = stored
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do one step of the pickle's."""
        if name in _NOTHING:
            return
        if name in _PUSHED:
            self._stack.append(_PUSHED[name])
        elif name in _NEW:
            self._stack.append(_NEW[name]())
        elif name in _PLAIN:
            self._stack.append(_within(argument))
        elif name in _PYTHON_2:
            self._stack.append(argument.encode("latin-1"))
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            self._refuse(f"has a step {name}")

    def result(self) -> Any:
        """Return what is left."""
        if len(self._stack) != 1 or self._marked:
            raise ValueError("it does not end with one object")
        return self._stack[0]

    def _refuse(self, does: str) -> None:
        raise ConfigError(
            f"{self._what} {does}, and of pickles only arrays, bytes, texts, numbers, "
            "lists and dicts are read: nothing of it was run. If its maker is known, "
            "save it in another form."
        )

    def mark(self, _: Any) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def pop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    def pop_mark(self, _: Any) -> None:
        self._since_mark()

    def copy(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def put(self, place: Any) -> None:
        self._memo[int(place)] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, place: Any) -> None:
        self._stack.append(self._memo[int(place)])

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("a tuple of more than there is")
        items = self._stack[-count:]
        self._stack[-count:] = [tuple(items)]

    def tuple_since(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(tuple(items))

    def list_since(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(items)

    def dict_since(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(_filled({}, items))

    def append(self, _: Any) -> None:
        item = self._stack.pop()
        self._extend([item])

    def appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: Iterable[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise TypeError("items for what is no list")
        self._stack[-1].extend(items)

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _filled(self._stack[-1], [key, value])

    def set_items(self, _: Any) -> None:
        items = self._since_mark()
        _filled(self._stack[-1], items)

    def name(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self._look_up(module, name)

    def stacked_name(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name that is no text")
        self._look_up(module, name)

    def _look_up(self, module: str, name: str) -> None:
        if len(module) + len(name) > LONGEST_NAME:
            raise ValueError(f"a name of more than {LONGEST_NAME} characters")
        full = f"{module}.{name}"
        construct = self._find(full)
        if construct is None:
            self._refuse(f"asks for {shown(full)}")
        else:
            self._stack.append(Named(full, construct))

    def call(self, _: Any) -> None:
        arguments, named = self._stack.pop(), self._stack.pop()
        if not (isinstance(named, Named) and isinstance(arguments, tuple)):
            raise TypeError("a call of what is no name")
        self._stack.append(named.construct(*arguments))

    def set_state(self, _: Any) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if not isinstance(target, Stateful):
            raise TypeError(f"a state for a {type(target).__name__}")
        target.set_state(state)

    def outside(self, _: Any) -> None:
        if self._stored is None:
            self._refuse("asks for what lies outside of it")
        else:
            self._stack.append(self._stored(_flat(self._stack.pop())))


def _flat(identifier: Any) -> tuple[Any, ...]:
    """Refuse identifiers of more than plain values, whose text could be endless."""
    if type(identifier) is not tuple or len(identifier) > 8:
        raise TypeError("an identifier that is no short tuple")
    if not all(value is None or type(value) in _FLAT for value in identifier):
        raise TypeError("an identifier that holds more than plain values")
    return identifier


def _within(value: Any) -> Any:
    """Refuse numbers that no field of these files has."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise OverflowError("a number of more than 64 bits")
    return value


def _filled(target: Any, items: list[Any]) -> dict[Any, Any]:
    """Put keys and values, in turn, into a dict.

    Keys are plain, since Python hashes a nested tuple by recursion without end.
    """
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError("entries for what is no dict")
    if any(type(key) not in (str, bytes, int) for key in items[::2]):
        raise TypeError("a key that is neither a text nor a number")
    target.update(zip(items[::2], items[1::2], strict=True))
    return target


_FLAT = (str, bytes, int, float, bool, Named)
_NOTHING = {"PROTO", "FRAME", "STOP"}
_PUSHED: dict[str, Any] = {
    "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (),
}  # fmt: skip
_NEW: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_PLAIN = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT",
    "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_PYTHON_2 = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark, "POP": _Machine.pop, "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.copy, "MEMOIZE": _Machine.memoize,
    "PUT": _Machine.put, "BINPUT": _Machine.put, "LONG_BINPUT": _Machine.put,
    "GET": _Machine.get, "BINGET": _Machine.get, "LONG_BINGET": _Machine.get,
    "TUPLE": _Machine.tuple_since, "LIST": _Machine.list_since,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "DICT": _Machine.dict_since, "APPEND": _Machine.append,
    "APPENDS": _Machine.appends, "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items, "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.stacked_name, "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call, "BUILD": _Machine.set_state,
    "BINPERSID": _Machine.outside,
}  # fmt: skip
