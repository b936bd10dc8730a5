"""Lists of what there is to choose from, and of what is installed and found here."""

import inspect
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.devices import device_name, find_device
from privaudit.core.errors import (
    PluginError,
    PrivauditError,
    UnknownNameError,
    one_line,
)
from privaudit.core.formatting import install_line
from privaudit.core.registry import Registry, first_line
from privaudit.core.signing import key_place
from privaudit.core.storage import cache_folder
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.named_places import search_path
from privaudit.datasets.sources import OnDisk, places
from privaudit.federation.trainer import TRAINERS
from privaudit.models.registry import list_models
from privaudit.runs.run import runs_folder, shared_place
from privaudit.tuning.peft_methods.registry import PEFT_METHODS

REGISTRIES: dict[str, Registry[object]] = {
    "trainers": TRAINERS,  # type: ignore[dict-item]
    "attacks": ATTACKS,  # type: ignore[dict-item]
    "scenarios": SCENARIOS,  # type: ignore[dict-item]
    "datasets": DATASETS,  # type: ignore[dict-item]
    "peft-methods": PEFT_METHODS,  # type: ignore[dict-item]
}

_SOURCE = "Source: "
_SECTION = re.compile(r"^(?:Args|Attributes|Example|Raises|Returns):$", re.MULTILINE)


def names_of(what: str) -> Iterator[tuple[str, ...]]:
    """Yield each name with the first line of its documentation, and further lines.

    A data set that users bring has three more: what it needs, where it is looked for,
    and whether something is there.

    The name of an entry gives what it is, its source, and its parameters with defaults;
    no name at all gives the lists that there are.

    Raises:
        UnknownNameError: There is no such list, and no such entry.
        PluginError: The entry is another package's, and cannot be imported.
    """
    if not what:
        yield from _lists()
        return
    if what == "models":
        yield from list_models()
        return
    if what not in REGISTRIES:
        having = [r for r in REGISTRIES.values() if what in r.names()]
        if not having:
            lists = [*REGISTRIES, "models"]
            names = (name for r in REGISTRIES.values() for name in r.names())
            raise UnknownNameError("list or entry", what, lists, names)
        for registry in having:
            yield from _described(what, registry)
        return
    registry = REGISTRIES[what]
    for name in registry.names():
        try:
            entry = registry.find(name)
        except PluginError as error:
            yield name, one_line(str(error))
            continue
        yield name, *_summary(name, entry)


def _lists() -> Iterator[tuple[str, str]]:
    models = [name for name, _ in list_models()]
    lists = {**{what: r.names() for what, r in REGISTRIES.items()}, "models": models}
    for what, names in lists.items():
        yield what, f"{len(names)}: {', '.join(names)}"


def _summary(name: str, entry: object) -> Iterator[str]:
    if not isinstance(entry, OnDisk):
        yield first_line(entry)
        return
    yield entry.summary
    yield from _needs(name, entry)


def find_place(name: str, entry: OnDisk) -> Path | None:
    """Return where a data set lies on this machine; None if it does not."""
    return next((path for path in places(name, entry) if path.exists()), None)


def _needs(name: str, entry: OnDisk) -> Iterator[str]:
    looked, there = list(places(name, entry)), find_place(name, entry)
    yield f"needs: {entry.needs}"
    yield f"looks in: --data, {', '.join(map(str, looked))}"
    yield f"found: {there}" if there else f"not there. {entry.source}."


def _described(name: str, registry: Registry[object]) -> Iterator[tuple[str, ...]]:
    """Yield what an entry is and where it comes from, and then each parameter."""
    entry, package = registry.find(name), registry.package_of(name)
    of = (f"Installed by {package}.",) if package else ()
    if isinstance(entry, OnDisk):
        yield name, *_summary(name, entry), *of
        return
    documentation = inspect.getdoc(entry) or ""
    module = inspect.getdoc(inspect.getmodule(entry)) or ""
    said = [*_prose(documentation), *of]
    if not any(words.startswith(_SOURCE) for words in said):
        said += [words for words in _prose(module) if words.startswith(_SOURCE)]
    yield name, *said
    yield from _parameters(entry)


def _prose(documentation: str) -> list[str]:
    """Return the paragraphs before the first section, each as one line."""
    paragraphs = re.split(r"\n\s*\n", re.split(_SECTION, documentation)[0])
    return [" ".join(words.split()) for words in paragraphs if words.strip()]


def _parameters(entry: object) -> Iterator[tuple[str, str]]:
    """Yield each parameter with its default and what the code says of it."""
    if not callable(entry):
        return
    said: dict[str, str] = {}
    for part in reversed(entry.__mro__ if isinstance(entry, type) else (entry,)):
        said |= _attributes(inspect.getdoc(part) or "")
    for name, parameter in inspect.signature(entry).parameters.items():
        default = parameter.default
        shown = "none" if default is None else default
        first = "required" if default is inspect.Parameter.empty else shown
        yield name, f"{first}. {said.get(name, '')}".strip()


def _attributes(documentation: str) -> dict[str, str]:
    """Return what the section "Attributes" or "Args" says, by name."""
    _, _, section = documentation.partition("\nAttributes:\n")
    section = section or documentation.partition("\nArgs:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


Finding = tuple[str, str]
"""What is asked, and what was found."""

_SHOWN = ("torch", "open-clip-torch", "transformers", "peft", "opacus", "dp-accounting")
_DEVELOPERS = ("dev", "docs")
_OF_AN_EXTRA = re.compile(r"(?P<name>[\w.-]+).*extra == [\"'](?P<extra>[\w-]+)[\"'].*")
_HUB = "~/.cache/huggingface/hub"


def findings() -> Iterator[Finding]:
    """Yield what a question about this installation would need, line by line."""
    yield "privaudit", version("privaudit")
    yield "Python", f"{platform.python_version()}, {platform.platform()}"
    for name in _SHOWN:
        yield name, _version(name)
    yield from _extras()
    yield from _devices()
    yield from _places()
    yield from _data()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _extras() -> Iterator[Finding]:
    """Yield each extra for users, and which of its packages are missing."""
    packages: dict[str, list[str]] = {}
    for line in requires("privaudit") or ():
        found = _OF_AN_EXTRA.fullmatch(line)
        if found and found["extra"] not in _DEVELOPERS:
            packages.setdefault(found["extra"], []).append(found["name"])
    for extra, names in packages.items():
        missing = [name for name in names if _version(name) == "not installed"]
        said = f"not installed: {install_line(extra)}"
        yield f"extra [{extra}]", said if missing else "installed"


def _devices() -> Iterator[Finding]:
    yield "processor", f"{os.cpu_count()} cores"
    try:
        yield "--device cuda", device_name(find_device("cuda"))
    except PrivauditError:
        yield "--device cuda", "not available here"


def _named(path: Path) -> str:
    return f"{shared_place(path.absolute())} ({_state(path)})"


def _found(place: Callable[[], str]) -> str:
    """Return where something lies, or why it has no place."""
    try:
        return place()
    except PrivauditError as error:
        return str(error).partition(". ")[0]


def _places() -> Iterator[Finding]:
    yield "runs", _found(lambda: _named(runs_folder(None)))
    yield "cache", _found(lambda: _named(cache_folder()))
    yield "signing key", _found(key_place)
    hub = Path(os.environ.get("HF_HUB_CACHE", _HUB))
    with suppress(RuntimeError):  # a user without a home
        hub = hub.expanduser()
    models = sorted(hub.glob("models--*")) if hub.is_dir() else []
    said = f"{hub} ({_state(hub)}), {len(models)} models"
    if os.environ.get("HF_HUB_OFFLINE"):
        said += "; HF_HUB_OFFLINE is set, so nothing is downloaded"
    yield "hub's cache", said
    for folder in models:
        yield "", folder.name.removeprefix("models--").replace("--", "/")


def _state(path: Path) -> str:
    above = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not os.access(above, os.W_OK):
        return "cannot be written"
    return "there" if above == path else "made when needed"


def _data() -> Iterator[Finding]:
    roots = ", ".join(map(str, search_path()))
    yield "data are sought in", f"{roots} (PRIVAUDIT_DATA names others)"
    missing = []
    for name, entry in DATASETS.usable().items():
        if isinstance(entry, OnDisk):
            path = find_place(name, entry)
            if path is None:
                missing.append(name)
            else:
                yield name, str(path)
    yield "not found", ", ".join(missing)
    yield "", "`privaudit list NAME` says what each needs, and where it is from."
    yield "downloads", "only what --model or --data names on a hub, such as clip:NAME"
