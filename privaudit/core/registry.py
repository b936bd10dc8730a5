"""Names for trainers, attacks and scenarios.

Whatever a module in one of the three folders registers is found by name: adding one
takes a file there, and no line anywhere else.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from typing import Generic, TypeVar, cast

from privaudit.core.errors import ConfigError, UnknownNameError

T = TypeVar("T")
E = TypeVar("E")  # an entry as written: the contract tests check what it does


class Registry(Generic[T]):
    """The named entries of one folder, imported when first asked for."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[E], E]:
        """Return a decorator that enters a class or function under ``name``.

        Raises:
            ConfigError: Another entry already has that name.
        """

        def enter(entry: E) -> E:
            other: object = self._entries.setdefault(name, cast(T, entry))
            if other is not entry:
                raise ConfigError(
                    f"Two {self.kind}s are called {name!r}: "
                    f"{_origin(other)} and {_origin(entry)}. Rename one."
                )
            return entry

        return enter

    def find(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            UnknownNameError: There is none.
        """
        if name not in self.names():
            raise UnknownNameError(self.kind, name, self._entries)
        return self._entries[name]

    def names(self) -> list[str]:
        """Return every name in the folder and the folders in it, sorted."""
        path = import_module(self.package).__path__
        for module in walk_packages(path, f"{self.package}."):
            import_module(module.name)
        return sorted(self._entries)


def _origin(entry: object) -> str:
    return (
        f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', entry)}"
    )
