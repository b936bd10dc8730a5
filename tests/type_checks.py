"""Types and shapes of calls, checked in one pass: of each function in each test the
first twenty, and of those after every fiftieth.

jaxtyping's own decorator binds the arguments of every call, and has the type checker
look at them twice; that was half of the suite's processor time.
"""

import dataclasses
import inspect
import sys
import typing
from collections import defaultdict
from collections.abc import Callable
from functools import cache, wraps
from threading import local
from types import CodeType
from typing import Any, get_type_hints

from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, jaxtyped

# Protocols are checked by their members, which Python before 3.12 lists at each check.
if sys.version_info < (3, 12):
    typing._get_protocol_attrs = cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]
else:  # and from 3.12 on by those that are there without asking: a tokenizer's are not
    typing._lazy_load_getattr_static = lambda: getattr

FIRST, EVERY = 20, 50
# Of this test, by the code that was called: up to 0 each is checked, then the last alone.
calls = defaultdict[int, int](lambda: -FIRST)


class _Called(local):
    """The inner functions that are being called in this thread, the last one last."""

    def __init__(self) -> None:
        self.functions: list[Callable[..., Any]] = []


_called = _Called()
_checkers: dict[CodeType, Callable[..., Any]] = {}  # of inner functions
_CHECK = beartype(conf=BeartypeConf(violation_type=TypeCheckError))


def jaxtyped_once(*, typechecker: object) -> Callable[[Any], Any]:
    """Return a decorator of functions and dataclasses, in place of ``jaxtyped``.

    Args:
        typechecker: Named by the import hook: beartype.
    """
    return _checked


def _checked(defined: Any) -> Any:
    if not inspect.isclass(defined):
        return _checked_function(defined)
    if dataclasses.is_dataclass(defined) and "__init__" in vars(defined):
        defined.__init__ = _checked_function(defined.__init__)  # type: ignore[method-assign]
    return defined


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None  # most functions are never called
    code = id(function.__code__)  # an inner function's is that of all defined after it

    @wraps(function)
    def with_its_own_axes(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        made = calls[code] = calls[code] + 1
        if 0 < made < EVERY:  # in half the time with a plain call and no division
            return function(*args, **kwargs) if kwargs else function(*args)
        calls[code] = min(made, made % EVERY)
        if checked is None:
            is_inner = "<locals>" in function.__qualname__
            starts_later = inspect.isgeneratorfunction(function)
            shared = is_inner and not starts_later
            checked = (_inner_checker if shared else _checker)(function)
        with jaxtyped("context"):  # the next call's axes may have other sizes
            return checked(*args, **kwargs)

    return with_its_own_axes


def _checker(function: Callable[..., Any]) -> Callable[..., Any]:
    written = function.__annotations__
    names = getattr(function, "__globals__", {})
    function.__annotations__ = {n: _type(a, names) for n, a in written.items()}
    checked = _CHECK(function)
    function.__annotations__ = written
    return checked


def _inner_checker(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what checks a function that each call of an outer one defines anew.

    Its checker, which takes a hundred times as long to make as to call, is made once:
    no annotation in the package depends on what the outer function was called with.
    """
    if function.__code__ not in _checkers:

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _called.functions[-1](*args, **kwargs)

        _checkers[function.__code__] = _checker(call)
        del call.__wrapped__  # and what it encloses
    checked = _checkers[function.__code__]

    def with_its_function(*args: Any, **kwargs: Any) -> Any:
        _called.functions.append(function)
        try:
            return checked(*args, **kwargs)
        finally:
            _called.functions.pop()

    return with_its_function


def _type(annotation: object, names: dict[str, Any]) -> object:
    """Return a type, or Any where only mypy imports it, or it is being defined."""

    def annotated() -> None: ...

    annotated.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(annotated, names, include_extras=True)["it"]
    except NameError:
        return Any
