"""A utility table's numbers as flat records: of cells, and of runs."""

from dataclasses import dataclass
from typing import Any, get_args

from privaudit_tools.tables.metrics import Metric, scale
from privaudit_tools.tables.outcomes import TableOutcome
from privaudit_tools.tables.pieces import PROVED
from privaudit_tools.tables.plan import Over
from privaudit_tools.tables.table import CellSummary, UtilityTable
from privaudit_tools.tables.utility_words import PER_CENT, unit

OVERS: tuple[Over, ...] = get_args(Over)
Record = dict[str, Any]


@dataclass(frozen=True)
class PrintedCell:
    """A record of :func:`cell_records`, as ``privaudit table --json`` prints it."""

    row: str
    column: str
    metric: Metric
    over: Over
    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    failed: int
    paper: str | None
    paper_mean: float | None
    paper_sd: float | None


def cell_records(table: UtilityTable) -> list[Record]:
    """Return a record for each cell, metric and what it is taken over.

    Numbers are in per cent, CIDEr-D a hundredfold, megabytes as they are.

    ``low`` and ``high`` are Student's 95 % interval for the mean over seeds.
    """
    return [
        {
            "row": row.label,
            "column": column.name,
            "metric": metric,
            "over": over,
            **_numbers(cell),
        }
        for row, column in table.plan.cells
        for metric in table.plan.measured
        for over in OVERS
        if (cell := table.cell(row, column, metric, over))
    ]


def _numbers(cell: CellSummary) -> Record:
    mean, paper = cell.mean, cell.paper
    resolved = mean is not None and not mean.unresolved
    return {
        "n": mean.n[0] if mean else 0,
        "mean": mean.value if mean else None,
        "sd": cell.spread,
        "low": mean.low if mean and resolved else None,
        "high": mean.high if mean and resolved else None,
        "failed": cell.failed,
        "paper": paper.text if paper else None,
        "paper_mean": paper.mean if paper else None,
        "paper_sd": paper.spread if paper else None,
    }


def run_records(table: UtilityTable) -> list[Record]:
    """Return a record for each cell and seed; a run may stand in several cells."""
    trainers = {row.label: row.trainer for row in table.plan.rows}
    return [
        {
            "row": row,
            "column": column,
            "seed": seed,
            "trainer": trainers[row],
            **_of_run(table, table.outcomes[digest]),
        }
        for (row, column, seed), digest in table.schedule.places.items()
        if digest in table.outcomes
    ]


def _of_run(table: UtilityTable, outcome: TableOutcome) -> Record:
    values = {
        f"{metric}_{over}": _printed(metric, outcome.value(metric, over))
        for metric in table.plan.wanted
        for over in OVERS
    }
    views = {f"{PROVED}{view}": epsilon for view, epsilon in outcome.certified.items()}
    return {
        "digest": outcome.short_hash,
        "run": outcome.run,
        "rounds": outcome.rounds,
        "averaged": outcome.averaged,
        "seconds": round(outcome.seconds, 2),
        **values,
        "claimed": outcome.claimed,
        "delta": outcome.delta,
        **views,
        "neighbours": outcome.neighbours,
        **vars(outcome.computed),
        "error": outcome.error,
    }


def _printed(metric: Metric, value: float | None) -> float | None:
    return None if value is None else scale(metric) * value


def as_json(table: UtilityTable) -> Record:
    """Return plan, cells and runs; the paper's numbers stand with the cells.

    The unit is per cent but for the metrics among ``units``.
    """
    units = {m: unit(m) for m in table.plan.measured if unit(m) != PER_CENT}
    # A plan has metrics or panels, and one with both could not be read again.
    apart = {"paper", "metrics" if table.plan.panels else "panels"}
    return {
        "unit": "per cent",
        **({"units": units} if units else {}),
        "plan": table.plan.model_dump(mode="json", exclude=apart),
        "cells": cell_records(table),
        "runs": run_records(table),
    }
