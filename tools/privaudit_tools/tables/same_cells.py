"""Whether stored cells were run as the plan has them now."""

from privaudit_tools.tables.parts import Column, TableRow
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import settings_of

Spot = tuple[str, str]  # row label, column name


def is_same(old: TablePlan, new: TablePlan, spot: Spot) -> bool:
    """Say whether two plans train and measure a cell alike, however they put it.

    False where one of them has no such cell.
    """
    if _asked(old) != _asked(new):
        return False
    before, after = _found(old, spot), _found(new, spot)
    if before is None or after is None or before[0].trainer != after[0].trainer:
        return False
    return _trained(old, *before) == _trained(new, *after)


def has_changed(
    old: TablePlan, new: TablePlan, spots: set[Spot], ran: set[Spot]
) -> bool:
    """Say whether cells were run otherwise than the new plan has them.

    Where none of them was run, whether any was run that the new plan has no more.

    Args:
        old: As it was run.
        new: As it is now.
        spots: Of the new one.
        ran: Those of the old one that were run.
    """
    there = spots & ran & spots_of(new)
    if not there:
        return bool(ran - spots_of(new))
    return not all(is_same(old, new, spot) for spot in there)


def is_earlier(old: TablePlan, new: TablePlan, ran: set[Spot]) -> bool:
    """Say whether any of what was run is no part of the new plan."""
    return not all(is_same(old, new, spot) for spot in ran)


def spots_of(plan: TablePlan) -> set[Spot]:
    """Return where a plan has cells."""
    return {(row.label, column.name) for row, column in plan.cells}


def _asked(plan: TablePlan) -> tuple[object, ...]:
    attacks = plan.scenario, plan.shadows, plan.attacked
    return plan.over, plan.seeds, plan.elsewhere, attacks


def _found(plan: TablePlan, spot: Spot) -> tuple[TableRow, Column] | None:
    return next((c for c in plan.cells if (c[0].label, c[1].name) == spot), None)


def _trained(plan: TablePlan, row: TableRow, column: Column) -> tuple[object, ...]:
    return settings_of(plan, row, column), plan.fields_of(row, column), row.whose
