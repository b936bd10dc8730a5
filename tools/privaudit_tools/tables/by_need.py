"""Seeds by need: no further ones where every expectation of a plan is decided."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.stored import StoredTable, judge, read_stored


def pieces_by_need(plan: TablePlan, stored: Path) -> Iterator[Piece]:
    """Yield what to train next, look by look; without looks the whole plan, once.

    First all cells with the seeds of the first look. Then, with those of the next, what
    open expectations compare: until none is open, or there are no more seeds. Each look
    has its part of the error (:func:`privaudit_tools.tables.stored.judge`), so that who
    looks often is not surer by it.

    Args:
        plan: Its seeds are the most that are trained.
        stored: The table's JSON, which is read anew before each further look.
    """
    for index, count in enumerate(plan.looks):
        rows = columns = ""
        if index:
            undecided = open_expectations(plan, read_stored(stored))
            if not undecided:
                return
            rows, columns = _compared(plan, undecided)
        yield Piece(rows, columns, plan.seeds[:count])
    if not plan.looks:
        yield Piece()


def open_expectations(plan: TablePlan, stored: StoredTable) -> list[Expectation]:
    """Return the expectations that are neither decided nor bounded."""
    names = [column.name for column in plan.columns]
    steps = sum(len(one.steps(names)) for one in plan.expects)
    among = len(plan.expects)
    return [
        one
        for one in plan.expects
        if judge(one, plan, stored, among, steps).answer == "open"
    ]


def _compared(plan: TablePlan, some: Iterable[Expectation]) -> tuple[str, str]:
    """Return expressions of the rows and of the columns that expectations compare."""
    names = [column.name for column in plan.columns]
    spots = [spot for one in some for step in one.steps(names) for spot in step]
    rows, columns = zip(*spots, strict=True)
    return _any_of(rows), _any_of(columns)


def _any_of(names: Iterable[str]) -> str:
    return f"^(?:{'|'.join(map(re.escape, dict.fromkeys(names)))})$"
