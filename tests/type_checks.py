"""Types and shapes of calls, checked in one pass: the first thousand in each test.

jaxtyping's own decorator binds the arguments of every call, and has the type checker
look at them twice; that was half of the suite's processor time.
"""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, jaxtyped

ENOUGH = 1000
calls: Counter[Callable[..., Any]] = Counter()  # of this test
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
    written = function.__annotations__
    names = getattr(function, "__globals__", {})
    function.__annotations__ = {n: _type(a, names) for n, a in written.items()}
    checked = _CHECK(function)
    function.__annotations__ = written

    @wraps(function)
    def with_its_own_axes(*args: Any, **kwargs: Any) -> Any:
        calls[function] += 1
        if calls[function] > ENOUGH:
            return function(*args, **kwargs)
        with jaxtyped("context"):  # the next call's axes may have other sizes
            return checked(*args, **kwargs)

    return with_its_own_axes


def _type(annotation: object, names: dict[str, Any]) -> object:
    """Return a type, or Any where only mypy imports it, or it is being defined."""

    def annotated() -> None: ...

    annotated.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(annotated, names, include_extras=True)["it"]
    except NameError:
        return Any
