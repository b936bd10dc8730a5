"""Names of trainers, attacks and so on, and what each is, for ``privaudit list``."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.errors import PluginError, UnknownNameError, one_line
from privaudit.core.registry import Registry, first_line
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.sources import OnDisk, places
from privaudit.federated.trainer import TRAINERS
from privaudit.models.registry import list_models
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
    return next((place for place in places(name, entry) if place.exists()), None)


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
