"""A piece of a plan: what is trained now, and what was stored of the rest."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from privaudit.core.errors import ConfigError
from privaudit.core.storage import parse_json, read_bytes
from privaudit.evaluation.tables.metrics import scale
from privaudit.evaluation.tables.outcomes import LAST, TableOutcome
from privaudit.evaluation.tables.plan import Over, TablePlan
from privaudit.evaluation.tables.same_cells import is_same
from privaudit.evaluation.tables.schedule import Schedule

Records = TypeAdapter(list[dict[str, Any]])
PROVED = "certified_"  # before a view's name, in a stored run


@dataclass(frozen=True)
class Piece:
    """Which runs of a plan are trained.

    Attributes:
        rows: A regular expression, found in the labels of its rows; none is all.
        columns: Likewise, in the full names of its columns.
        seeds: Of the plan's; none is all.
    """

    rows: str = ""
    columns: str = ""
    seeds: tuple[int, ...] = ()

    def of(self, plan: TablePlan, planned: Schedule) -> Schedule:
        """Return the schedule with this piece's runs alone, and all places.

        Raises:
            ConfigError: It holds no cell, or is no regular expression.
        """
        row, column = (
            _compiled("--rows", self.rows),
            _compiled("--columns", self.columns),
        )
        wanted = {
            digest
            for (label, name, seed), digest in planned.places.items()
            if row.search(label) and column.search(name)
            and (not self.seeds or seed in self.seeds)
        }  # fmt: skip
        if not wanted:
            rows = ", ".join(row.label for row in plan.rows)
            columns = ", ".join(column.name for column in plan.columns)
            raise ConfigError(
                f"--rows {self.rows!r} and --columns {self.columns!r} are in no cell of "
                f"the plan. It has the rows {rows} and the columns {columns}."
            )
        runs = tuple(run for run in planned.runs if run.digest in wanted)
        return replace(planned, runs=runs)


def _compiled(option: str, expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(
            f"{option} {expression!r} is no regular expression: {error}. A bracket or a "
            "dot that is meant as such has a backslash before it."
        ) from None


def stored_outcomes(
    path: Path, plan: TablePlan, planned: Schedule
) -> dict[str, TableOutcome]:
    """Return finished runs that a table's JSON holds, by today's digest.

    Those of cells that the plan trains or measures otherwise now are left out; without
    the file, there is none.

    Raises:
        ConfigError: It is not what `privaudit table` writes, or has numbers without
            their runs, which would be lost.
    """
    if not path.is_file():
        return {}
    content = parse_json(read_bytes(path), path)
    try:
        old = TablePlan.model_validate(content["plan"])
        runs = Records.validate_python(content["runs"])
        cells = Records.validate_python(content["cells"])
    except (KeyError, TypeError, ValidationError):
        raise ConfigError(
            f"{path} is not what `privaudit table` writes. Move it away."
        ) from None
    if cells and not runs:
        raise ConfigError(
            f"{path} holds means without their runs, which no piece can be added to. "
            "Move it away, or run the whole plan."
        )
    old = old.model_copy(update={"seeds": plan.seeds})
    return {
        digest: _outcome(plan, digest, run)
        for run in runs
        if (digest := planned.places.get((run["row"], run["column"], run["seed"])))
        and not run.get("error")
        and is_same(old, plan, (run["row"], run["column"]))
    }


def _outcome(plan: TablePlan, digest: str, run: Mapping[str, Any]) -> TableOutcome:
    values = {
        metric: {
            over: None if value is None else value / scale(metric)
            for over in get_args(Over)
            for value in (run.get(f"{metric}_{over}"),)
        }
        for metric in plan.wanted
    }
    proved = {
        name.removeprefix(PROVED): value
        for name, value in run.items()
        if name.startswith(PROVED)
    }
    return TableOutcome(
        digest,
        run["run"],
        run["rounds"],
        run.get("averaged", min(LAST, run["rounds"])),
        run["seconds"],
        values,
        run["claimed"],
        run["delta"],
        proved,
        run.get("neighbours", ""),
    )
