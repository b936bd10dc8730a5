"""A plan with other settings, fields or seeds than its file says."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from privaudit.core.errors import ConfigError
from privaudit_tools.tables.plan import TablePlan, readable

AWAY = "elsewhere."  # before the names of fields of another data set
_PLACES = ("data", "dataset", "model", "checkpoint", "classes", f"{AWAY}data")
# KIND:PATH, as surrogate:/bank, and no data://NAME.
_PATH = re.compile(r"(\w[\w-]*:(?!//))?([/~$.].*)", re.DOTALL)


def overridden(
    plan: TablePlan,
    settings: Mapping[str, Any],
    fields: Mapping[str, Any],
    seeds: Sequence[int] = (),
) -> TablePlan:
    """Return a plan whose cells all have what is given, whatever rows and columns say.

    Its first note says what was changed; the others are of the plan as it was.

    Args:
        plan: As its file says.
        settings: Parameters, of those trainers that have them; None is "none".
        fields: Of a run; ``elsewhere.NAME`` is one of the plan's [elsewhere].
        seeds: In place of the plan's; none keeps these.

    Raises:
        ConfigError: A field is one that rows, columns or seeds set, or is of a data set
            elsewhere that the plan does not have.
    """
    content = plan.model_dump(exclude={"paper"}, exclude_defaults=True)
    content |= {"title": plan.title, "rows": list(content["rows"])}
    if settings or fields:
        content["notes"] = (_said({**settings, **fields}), *plan.notes)
    if away := _fields_elsewhere(plan, fields):
        content["elsewhere"] = {**content["elsewhere"], **away}
        fields = {n: v for n, v in fields.items() if not n.startswith(AWAY)}
    if "columns" in content:
        content["columns"] = list(content["columns"])
    for kind, given in (("settings", settings), ("fields", fields)):
        for part in (*content["rows"], *content.get("columns", ())):
            part[kind] = _without(part.get(kind, {}), given)
        content[kind] = {**content.get(kind, {}), **given}
    for part in content.get("columns", ()):
        for label, own in part.get("settings_for", {}).items():
            part["settings_for"][label] = _without(own, settings)
    if seeds:
        content["seeds"] = tuple(seeds)
        content.pop("looks", None)  # which count the plan's seeds
    try:
        changed = TablePlan.model_validate(content)
    except ValidationError as error:
        raise ConfigError(
            f"The plan cannot be changed so: {readable(error)}."
        ) from None
    return changed.model_copy(update={"paper": plan.paper})


def _said(given: Mapping[str, Any]) -> str:
    """Return a note of what stands over the plan, with the last parts of paths alone."""
    shown = (f"{name} = {_shortened(name, value)}" for name, value in given.items())
    return (
        "Not as the plan has it, whatever the notes below say (--set, --field): "
        f"{', '.join(shown)}."
    )


def _shortened(name: str, value: object) -> str:
    """Return a value as a note shows it; the folder above a path is of one machine."""
    text = "none" if value is None else str(value)
    if name not in _PLACES or not (found := _PATH.fullmatch(text)):
        return text
    kind, path = found[1] or "", found[2]
    return kind + (path.rstrip("/").rpartition("/")[2] or path)


def _fields_elsewhere(plan: TablePlan, fields: Mapping[str, Any]) -> dict[str, Any]:
    away = {n.removeprefix(AWAY): v for n, v in fields.items() if n.startswith(AWAY)}
    if away and plan.elsewhere is None:
        raise ConfigError(
            f"{AWAY}{next(iter(away))} was given, and the plan has no [elsewhere] that it "
            "could be a field of. Leave it out."
        )
    return away


def _without(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in own.items() if name not in given}
