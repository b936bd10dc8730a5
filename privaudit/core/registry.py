"""Names for trainers, attacks, scenarios, data sets and whatever else users choose from.

Whatever a module in a registry's folder registers is found by name: adding one takes a
file there, and no line anywhere else. Other packages add theirs by an entry point whose
group is the folder's dotted path, such as ``privaudit.attacks``::

    [project.entry-points."privaudit.attacks"]
    my-attack = "my_package.my_module:MyAttack"
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from pkgutil import iter_modules
from traceback import walk_tb
from types import CodeType, ModuleType
from typing import Generic, TypeVar, cast

from privaudit.core.errors import (
    ConfigError,
    PluginError,
    PrivauditError,
    UnknownNameError,
    without_exits,
)

T = TypeVar("T")
E = TypeVar("E")  # an entry as written: the contract tests check what it does
# Names are typed on command lines, are parts of file names, and stand in exports.
_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*", re.ASCII)
_LONGEST = 48


class Registry(Generic[T]):
    """The named entries of one folder and of installed plugins, imported when needed.

    By convention an entry stands in the module of its name, with ``_`` for ``-``, or in
    the one that ``MODULES`` of the folder's ``__init__`` gives for the name: then a
    look-up imports that module alone. An entry in any other module is found as well,
    but all modules of the folder, and of folders in it, are imported for it. ``RENAMED``
    of the ``__init__`` gives the new name for an old one, for the error, and ``IN_LABS``
    and ``IN_TOOLS`` the names that stand in these packages of the repository.

    Attributes:
        kind: What an entry is, for errors.
        package: The folder of the built-in entries.
        group: Of the entry points; by default the folder's dotted path.
    """

    def __init__(self, kind: str, package: str, group: str = "") -> None:
        self.kind = kind
        self.package = package
        self.group = group or package
        self._entries: dict[str, T] = {}
        self._found: set[str] = set()  # built-in entries, their modules imported

    def register(self, name: str) -> Callable[[E], E]:
        """Return a decorator that enters a class or function under ``name``.

        Raises:
            ConfigError: Another entry already has that name, or it is none.
        """
        self.check_name(name)

        def enter(entry: E) -> E:
            other: object = self._entries.setdefault(name, cast(T, entry))
            if other is not entry:
                raise ConfigError(
                    f"Two {self.kind}s are called {name!r}: {_origin(other)} and "
                    f"{_origin(entry)}. Rename one."
                )
            return entry

        return enter

    def check_name(self, name: str) -> None:
        """Refuse what can be no entry's name.

        Raises:
            ConfigError: It has other letters, or too many.
        """
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise ConfigError(
                f"A {self.kind} was to be called {name!r}. Names are at most {_LONGEST} "
                "small letters and digits, with - or _ between words."
            )

    def find(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            UnknownNameError: There is none.
            PluginError: It is another package's, and cannot be imported, or has the
                name of another entry.
        """
        plugins = self._plugins(name)
        if not plugins and name in self._found and name in self._entries:
            return self._entries[name]
        for path in self._modules_of(name):
            import_module(path)
        if plugins or name not in self._entries:
            self._import_all()  # also to see that no built-in entry has that name
        for plugin in plugins:
            self._load(name, plugin)
        if name not in self._entries:
            renamed = getattr(import_module(self.package), "RENAMED", {})
            in_tools = getattr(import_module(self.package), "IN_TOOLS", ())
            apart = {"labs": self.in_labs(), "tools": in_tools}
            raise UnknownNameError(
                self.kind,
                name,
                self.names(),
                renamed=renamed.get(name, ""),
                folder="".join(one for one, names in apart.items() if name in names),
            )
        if not plugins:
            self._found.add(name)
        return self._entries[name]

    def names(self) -> list[str]:
        """Return all names, sorted; plugins are not imported for it."""
        self._import_all()
        return sorted({*self._entries, *(p.name for p in self._plugins())})

    def in_labs(self) -> tuple[str, ...]:
        """Return the names that stand in privaudit-labs, whether it is installed or not."""
        return tuple(getattr(import_module(self.package), "IN_LABS", ()))

    def has(self, name: str) -> bool:
        """Say whether a module of a name, or a plugin, is there; none is imported."""
        return name in self._entries or bool(
            self._modules_of(name) or self._plugins(name)
        )

    def usable(self) -> dict[str, T]:
        """Return the entries by name, without plugins that cannot be imported."""
        entries = {}
        for name in self.names():
            try:
                entries[name] = self.find(name)
            except PluginError:
                continue
        return entries

    def package_of(self, name: str) -> str:
        """Return whose plugin an entry is, as "others 1.2"; empty for a built-in one."""
        return ", ".join(map(_package, self._plugins(name)))

    def names_of(self, package: str) -> list[str]:
        """Return the names that a distribution, or a module of that name, adds."""
        whose, module = _plain(package), package.replace("-", "_")
        return [
            plugin.name
            for plugin in self._plugins()
            if (plugin.dist and _plain(plugin.dist.name) == whose)
            or plugin.module.partition(".")[0] == module
        ]

    def is_own(self, made: object) -> bool:
        """Say whether the code of an object's class stands in the registry's folder.

        A class of another package, of a script, or of a folder that was added to the
        search path is somebody else's, also where it inherits from an entry.
        """
        folder = Path(str(import_module(self.package).__file__)).parent
        code = getattr(sys.modules.get(type(made).__module__), "__file__", None)
        return code is not None and Path(code).resolve().is_relative_to(
            folder.resolve()
        )

    def _modules_of(self, name: str) -> list[str]:
        """Return the dotted paths of modules in which an entry is looked for first."""
        listed = getattr(import_module(self.package), "MODULES", {})
        module = listed.get(name, name.replace("-", "_"))
        return [p for p in self._modules() if p.rpartition(".")[2] == module]

    def _modules(self) -> Iterator[str]:
        """Yield the dotted paths of the folder's modules, without importing them."""
        folders = [(self.package, list(import_module(self.package).__path__))]
        for package, paths in folders:
            for module in iter_modules(paths):
                path = f"{package}.{module.name}"
                if module.ispkg:
                    folders.append((path, [f"{p}/{module.name}" for p in paths]))
                yield path

    def _import_all(self) -> None:
        for path in self._modules():
            import_module(path)

    def _plugins(self, name: str | None = None) -> list[EntryPoint]:
        plugins = _entry_points(self.group, tuple(sys.path))
        return [plugin for plugin in plugins if name in (None, plugin.name)]

    def _load(self, name: str, plugin: EntryPoint) -> None:
        """Import a plugin, and enter what it names, if it did not do so itself."""
        other = self._entries.get(name)
        try:
            with without_exits():
                loaded = plugin.load()
            if not plugin.attr:
                raise TypeError("that is a module, and not MODULE:OBJECT")
        except Exception as error:  # whatever other people's code raises
            raise PluginError(
                f"The {self.kind} {name!r} of the package {_package(plugin)} cannot be "
                f"used: {plugin.value}: {_fault(error)}"
            ) from error
        if other not in (None, loaded):
            raise PluginError(
                f"Two {self.kind}s are called {name!r}: {_origin(other)} and "
                f"{_origin(loaded)} of the package {_package(plugin)}. Remove that "
                "package, or rename its entry point."
            )
        self._entries[name] = loaded


def import_under_one_name(name: str) -> None:
    """Make ``trainers``, imported in a clone, the same module as ``privaudit.trainers``.

    So for all modules in it, in whichever order they are imported: of a second copy
    every entry would be registered twice. An installation has no bare name.

    Args:
        name: ``__name__`` of the folder that calls this; nothing is done where it is
            the full name.

    Raises:
        ImportError: The ``privaudit`` that is imported belongs to another folder.
    """
    if name.startswith("privaudit."):
        return
    here = sys.modules[name]
    package = import_module(f"privaudit.{name}")
    if Path(str(package.__file__)).resolve() != Path(str(here.__file__)).resolve():
        raise ImportError(
            f"{here.__file__} was imported as {name!r}, and the privaudit that is "
            f"imported has its own in {package.__file__}. Import privaudit.{name}, or "
            "put the folder that holds both first on sys.path."
        )
    sys.modules[name] = package
    sys.meta_path.insert(0, _FullName(name))


class _FullName(MetaPathFinder, Loader):
    """Finds the modules of a folder's bare name by their full one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        full = f"privaudit.{fullname}"
        is_ours = fullname.startswith(f"{self.folder}.") and find_spec(full)
        return spec_from_loader(fullname, self) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"privaudit.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back: importing has replaced it."""
        alias = module.__spec__
        module.__spec__ = alias.loader_state if alias else None


def first_line(entry: object) -> str:
    """Return the first line of what is documented of an entry; empty if nothing is."""
    return ((entry.__doc__ or "").strip().splitlines() or [""])[0]


@lru_cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; looked for once on each ``sys.path``."""
    return tuple(entry_points(group=group))


def fault_of_plugin(error: BaseException) -> str:
    """Return in a sentence what code of another package raised; empty if none did."""
    own = {"privaudit", "privaudit_tools", "privaudit_labs"}
    packages = {
        one.module.partition(".")[0]
        for group in entry_points().groups
        if group.startswith("privaudit.")
        for one in _entry_points(group, tuple(sys.path))
    } - own
    for frame, line in reversed([*walk_tb(error.__traceback__)]):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
            return raised(error, frame.f_code, line)
    return ""


def raised(error: BaseException, code: CodeType, line: int) -> str:
    """Return in a sentence what was raised, and where."""
    said = " ".join(str(error).split())
    return (
        f"{Path(code.co_filename).name} raised {type(error).__name__} in line {line} "
        f"({code.co_name}): {said[:500] or 'it says no more'}."
    )


def _plain(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _fault(error: Exception) -> str:
    """Return why a package cannot be imported, and what to do about it."""
    if isinstance(error, PrivauditError):  # says both itself
        return str(error)
    reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
    if isinstance(error, ModuleNotFoundError):
        return f"{reason}. Install what provides {error.name}, or remove that package."
    return f"{reason}. Install another version of that package, or remove it."


def _package(plugin: EntryPoint) -> str:
    return f"{plugin.dist.name} {plugin.dist.version}" if plugin.dist else plugin.value


def _origin(entry: object) -> str:
    return (
        f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', entry)}"
    )
