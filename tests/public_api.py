"""``python -m tests.public_api``: write down the public names and what they take.

What changes in the list changes for users: the changelog says so, and a name that goes is
deprecated for a release before.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import privaudit
from tests.places import ROOT

STORED = ROOT / "tests" / "public_api.txt"


def public_api() -> list[str]:
    """Return a line for each public function, class and public method."""
    return [line for name in privaudit.__all__ for line in _lines(name)]


def _lines(name: str) -> Iterator[str]:
    found = getattr(privaudit, name)
    yield f"{name}({_parameters(found)})"
    if isinstance(found, type):
        for method in sorted(vars_of(found)):
            if not method.startswith("_"):
                value = inspect.getattr_static(found, method)
                value = getattr(value, "__func__", value)
                called = f"({_parameters(value)})" if callable(value) else ""
                yield f"{name}.{method}{called}"


def vars_of(found: type) -> set[str]:
    """Return names that the class, or a class of the project it stands on, has."""
    ours = [one for one in found.__mro__ if one.__module__.startswith("privaudit")]
    return {name for one in ours for name in vars(one)}


def _parameters(value: Any) -> str:
    parameters = inspect.signature(value).parameters.values()
    return ", ".join(
        "*" * (one.kind == one.VAR_POSITIONAL)
        + "**" * (one.kind == one.VAR_KEYWORD)
        + one.name
        + "=" * (one.default is not one.empty)
        for one in parameters
        if one.name != "self"
    )


if __name__ == "__main__":
    Path(STORED).write_text("\n".join(public_api()) + "\n", encoding="utf-8")
