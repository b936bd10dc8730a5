"""A plan with other settings, fields or seeds than its file says."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from privaudit.core.errors import ConfigError
from privaudit.evaluation.tables.plan import TablePlan


def overridden(
    plan: TablePlan,
    settings: Mapping[str, Any],
    fields: Mapping[str, Any],
    seeds: Sequence[int] = (),
) -> TablePlan:
    """Return a plan whose cells all have what is given, whatever rows and columns say.

    Args:
        plan: As its file says.
        settings: Parameters, of those trainers that have them; None is "none".
        fields: Of a run.
        seeds: In place of the plan's; none keeps these.

    Raises:
        ConfigError: A field is one that rows, columns or seeds set.
    """
    content = plan.model_dump(exclude={"paper"}, exclude_defaults=True)
    content |= {"title": plan.title, "rows": list(content["rows"])}
    if "columns" in content:
        content["columns"] = list(content["columns"])
    for kind, given in (("settings", settings), ("fields", fields)):
        for part in (*content["rows"], *content.get("columns", ())):
            part[kind] = _without(part.get(kind, {}), given)
        content[kind] = {**content.get(kind, {}), **given}
    if seeds:
        content["seeds"] = tuple(seeds)
    try:
        changed = TablePlan.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"The plan cannot be changed so: {first}.") from None
    return changed.model_copy(update={"paper": plan.paper})


def _without(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in own.items() if name not in given}
