"""What there is to choose from, for ``privaudit list``."""

from collections.abc import Iterator

from privaudit.attack import ATTACKS
from privaudit.dataset import DATASETS
from privaudit.errors import UnknownNameError
from privaudit.registry import Registry
from privaudit.scenario import SCENARIOS
from privaudit.trainer import TRAINERS

REGISTRIES: dict[str, Registry[object]] = {
    "trainers": TRAINERS,  # type: ignore[dict-item]
    "attacks": ATTACKS,  # type: ignore[dict-item]
    "scenarios": SCENARIOS,  # type: ignore[dict-item]
    "datasets": DATASETS,  # type: ignore[dict-item]
}


def names_of(what: str) -> Iterator[tuple[str, str]]:
    """Yield each name with the first line of its documentation.

    Raises:
        UnknownNameError: There is no such list.
    """
    if what == "models":
        from privaudit.models.loading import MODELS

        yield from ((name, "") for name in MODELS)
        return
    if what not in REGISTRIES:
        raise UnknownNameError("list", what, [*REGISTRIES, "models"])
    registry = REGISTRIES[what]
    for name in registry.names():
        summary = (registry.find(name).__doc__ or "").strip().splitlines()
        yield name, summary[0] if summary else ""
