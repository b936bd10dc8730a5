"""What there is to choose from, for ``privaudit list``."""

import dataclasses
import inspect
import re
from collections.abc import Iterator

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


def names_of(what: str) -> Iterator[tuple[str, ...]]:
    """Yield each name with the first line of its documentation, and further lines.

    A data set that users bring has three more: what it needs, where it is looked for,
    and whether something is there.

    A trainer's name gives its parameters, with defaults and ranges.

    Raises:
        UnknownNameError: There is no such list.
    """
    if what == "models":
        yield from list_models()
        return
    if what not in REGISTRIES:
        if what not in TRAINERS.names():
            raise UnknownNameError("list", what, [*REGISTRIES, "models"])
        yield from _parameters(what)
        return
    registry = REGISTRIES[what]
    for name in registry.names():
        try:
            entry = registry.find(name)
        except PluginError as error:
            yield name, one_line(str(error))
            continue
        if isinstance(entry, OnDisk):
            yield name, entry.summary, *_needs(name, entry)
            continue
        yield name, first_line(entry)


def _needs(name: str, entry: OnDisk) -> Iterator[str]:
    looked = list(places(name, entry))
    there = next((place for place in looked if place.exists()), None)
    yield f"needs: {entry.needs}"
    yield f"looks in: --data, {', '.join(map(str, looked))}"
    yield f"found: {there}" if there else f"not there. {entry.source}."


def _parameters(trainer: str) -> Iterator[tuple[str, str]]:
    """Yield each parameter with its default and what its class says of it."""
    factory = TRAINERS.find(trainer)
    assert isinstance(factory, type)
    said: dict[str, str] = {}
    for part in reversed(factory.__mro__):
        said |= _attributes(inspect.getdoc(part) or "")
    built = factory()
    for field in dataclasses.fields(factory):
        default = getattr(built, field.name)
        shown = "none" if default is None else default
        yield field.name, f"{shown}. {said.get(field.name, '')}".strip()


def _attributes(documentation: str) -> dict[str, str]:
    """Return what the section "Attributes" says, by name."""
    _, _, section = documentation.partition("\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
