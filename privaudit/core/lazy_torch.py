"""torch, imported when something first computes with it.

Scores, gates, cards and annexes are read and checked without torch, also where it is not
installed. Modules that they pass through take ``torch``, ``Tensor``, ``nn`` and
``functional`` from here: until anything imports torch these are stand-ins, whose types
annotations can name; then modules of privaudit have the real ones in their place.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["Tensor", "functional", "late", "nn", "torch", "when_imported"]

T = TypeVar("T")
_waiting: list[Callable[[], object]] = []
_stand_ins: dict[int, tuple[object, Callable[[], object]]] = {}  # kept: ids are theirs


def when_imported(act: Callable[[], object]) -> None:
    """Call a function once torch is imported: now, if it is."""
    if "torch" in sys.modules:
        act()
    else:
        _waiting.append(act)


def late(make: Callable[[], T]) -> T:
    """Return a value of torch's for a module's global: until then one that stands in."""
    return make() if "torch" in sys.modules else _standing_in(_Late(make), make)


def _standing_in(stand_in: Any, make: Callable[[], object]) -> Any:
    _stand_ins[id(stand_in)] = stand_in, make
    return stand_in


class _Late:
    """Stands in for an object that takes torch, and has its attributes by importing it."""

    def __init__(self, make: Callable[[], object], **parts: object) -> None:
        self._make = make
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)

    def __getitem__(self, key: object) -> Any:
        return self._make()[key]  # type: ignore[index]


class _LateType(type):
    """Stands in for a type of torch: has its instances, once torch is imported."""

    def __instancecheck__(cls, instance: object) -> bool:
        return "torch" in sys.modules and isinstance(instance, cls._real())

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls._real()(*args, **options)

    def _real(cls) -> Any:
        return getattr(import_module(cls.__module__), cls.__name__)


def _late_module(name: str, types: tuple[str, ...] = (), **parts: object) -> Any:
    found = {one: _LateType(one, (), {"__module__": name}) for one in types}
    make = lambda: import_module(name)  # noqa: E731
    return _standing_in(_Late(make, **found, **parts), make)


@contextmanager
def _no_grad() -> Iterator[None]:
    """Take no gradients; as a decorator it imports nothing before a call."""
    with import_module("torch").no_grad():
        yield


class _Finder:
    """Finds torch as all others do, and puts it in place once it is imported.

    It stays until then: some only ask whether torch is there, and an import may fail.
    """

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = (one for one in sys.meta_path if one is not self)
        found = (one.find_spec(name, path, target) for one in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            vars(spec.loader)["exec_module"] = lambda module: self._put(run, module)
        return spec

    def _put(self, run: Callable[[ModuleType], object], module: ModuleType) -> None:
        """Import torch, put it in the place of what stood in, and call who waits."""
        collects = gc.isenabled()
        gc.disable()  # torch makes no garbage, and a sixth of its import looked for some
        try:
            run(module)
        finally:
            if collects:
                gc.enable()
        sys.meta_path.remove(self)
        for module in [
            m for name, m in sys.modules.items() if name.startswith("privaudit")
        ]:
            for name, value in list(vars(module).items()):
                if id(value) in _stand_ins:
                    setattr(module, name, _stand_ins[id(value)][1]())
        while _waiting:
            _waiting.pop(0)()


if TYPE_CHECKING or "torch" in sys.modules:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
else:
    nn = _late_module("torch.nn", ("Module",))
    functional = _late_module("torch.nn.functional")
    _types = ("Tensor", "device", "dtype", "Generator")
    torch = _late_module("torch", _types, no_grad=_no_grad, nn=nn)
    Tensor = _standing_in(torch.Tensor, torch.Tensor._real)
    sys.meta_path.insert(0, _Finder())
