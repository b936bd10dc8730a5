"""The commands ``table`` and ``table-figure``: plan in, table out, and its picture."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from privaudit.cli import options
from privaudit.cli.commands.report import Drawn, Out
from privaudit.cli.printing import show, with_json
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import parse_pairs

PlanFile = Annotated[
    Path, typer.Argument(help="A TOML file: rows, columns, seeds, a paper's numbers.")
]
TableFolder = Annotated[
    Path | None, options.folder_option("Output folder. By default: RUNS/tables.")
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Only validate the plan, read its data, time a round of each kind of run, "
        "and print what all will cost.",
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        help="Run setting, as NAME=VALUE, such as clients=3, or elsewhere.NAME=VALUE, "
        "of the data set that the plan measures on elsewhere; repeatable."
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="Seeds, as 1,2,3: of the plan's, a piece; others stand in their place."
    ),
]
Rows = Annotated[
    str,
    typer.Option(
        help="A piece: only rows whose label has this regular expression. The rest "
        "is taken from what --out holds."
    ),
]
Columns = Annotated[
    str, typer.Option(help='A piece: only columns, "GROUP: LABEL", likewise.')
]
Matrix = Annotated[
    bool,
    typer.Option(
        "--matrix",
        help="PLAN is a folder of plans and results: print which published tables "
        "and figures were run, and what that answers to their claims.",
    ),
]
Into = Annotated[
    Path | None,
    options.folder_option(
        "Folder of pages: --matrix writes itself into its published.md, each stored "
        "table into the page that names it, or into a new one, and each paper's answers "
        "into the page above that has a place for them."
    ),
]


def _printed() -> Any:
    """Return the type of what is printed: a table, a plan that is valid, the matrix."""
    from privaudit.cli.json_schemas import json_object
    from privaudit_tools.tables.stored import Answer
    from privaudit_tools.tables.utility_records import PrintedCell

    row = json_object("Row", published=str, plans=list[str], answer=Answer)
    return (
        json_object("Table", path=str, runs=int, failed=int, cells=list[PrintedCell])
        | json_object("Checked", plan=str, runs=int, seconds=float)
        | json_object("Matrix", rows=list[row], pages=list[str])  # type: ignore[valid-type]
    )


@partial(with_json, words="table", load=_printed)
@options.with_computing
def table(
    plan: PlanFile,
    runs: options.RunsFolder = None,
    out: TableFolder = None,
    on: options.On = "local",
    check: Check = False,
    setting: options.Settings = None,
    field: Fields = None,
    seeds: Seeds = None,
    rows: Rows = "",
    columns: Columns = "",
    matrix: Matrix = False,
    into: Into = None,
) -> None:
    """Reproduce a paper's table: train all cells of a plan over its seeds."""
    if matrix:
        _refuse_beside_matrix(check, out, setting, field, seeds, rows, columns)
        _write_matrix(plan, into)
        return
    if into:
        raise ConfigError("--into is where --matrix is written. Add --matrix.")
    if plan.is_dir():
        raise ConfigError(
            f"{plan} is a folder, and a plan is a TOML file. Name one of its plans, or "
            "add --matrix, which reads a folder of them."
        )
    from privaudit.execution.executors import find_executor
    from privaudit.runs.run import runs_folder
    from privaudit_tools.costs.forecast import forecast
    from privaudit_tools.tables.by_need import pieces_by_need
    from privaudit_tools.tables.overrides import overridden
    from privaudit_tools.tables.pieces import Piece
    from privaudit_tools.tables.plan import read_plan
    from privaudit_tools.tables.schedule import require_data, schedule
    from privaudit_tools.tables.table import make_table
    from privaudit_tools.tables.utility_records import cell_records
    from privaudit_tools.tables.utility_table import write_utility_table

    chosen = options.maybe_listed("--seeds", seeds, int, "whole numbers") or ()
    read = read_plan(plan)
    are_own = set(chosen) <= set(read.seeds)
    wanted = overridden(
        read,
        options.settings(setting),
        parse_pairs("--field clients=3", field or []),
        () if are_own else chosen,
    )
    piece = Piece(rows, columns, tuple(chosen) if are_own else ())
    executor = find_executor(on)
    if check:
        planned = piece.of(wanted, schedule(wanted, piece.holds))
        require_data(planned)
        cost = forecast(planned.runs, wanted.shadows, wanted.attacked, progress=_say)
        said = "1 run, which is" if cost.runs == 1 else f"{cost.runs} runs, all of them"
        contents = {"plan": str(plan), "runs": cost.runs, "seconds": cost.seconds}
        show(contents, f"{plan}: {said} valid. Cost: {cost}.")
        return
    options.check_kept(runs)
    folder = out or runs_folder(runs) / "tables"
    stored = folder / f"{plan.stem}.json"
    pieces = pieces_by_need(wanted, stored) if piece == Piece() else iter([piece])
    for now in pieces:
        made = make_table(
            wanted, folder=runs, executor=executor, progress=_say,
            piece=None if now == Piece() else now, stored=stored,
        )  # fmt: skip
        text = write_utility_table(made, folder, plan.stem)
    contents = {
        "path": str(folder / f"{plan.stem}.json"),
        "runs": len(made.outcomes),
        "failed": len(made.failures),
        "cells": cell_records(made.shown),
    }
    show(contents, lambda: typer.echo(text, nl=False))
    _say(f"Table, numbers and picture: {folder / plan.stem}.*")
    if made.failures:
        _say(f"{len(made.failures)} of {len(made.outcomes)} runs failed.")
        raise typer.Exit(1)


def _refuse_beside_matrix(*others: object) -> None:
    if any(others):
        raise ConfigError(
            "--matrix reads what was stored, and trains nothing: --check, --out, --set, "
            "--field, --seeds, --rows and --columns say nothing to it. Leave them out."
        )


def _write_matrix(folder: Path, pages: Path | None) -> None:
    from privaudit_tools.tables.matrix import (
        MATRIX_PAGE,
        as_markdown,
        matrix_rows,
        write_answers,
        write_between,
    )

    if not folder.is_dir():
        raise ConfigError(
            f"--matrix was given with {folder}, which is no folder. Name the folder of "
            "plans, as docs/tables."
        )
    rows = matrix_rows(folder)
    contents: dict[str, Any] = {
        "rows": [
            {"published": r.item.full_name, "plans": [*r.plans], "answer": r.answer}
            for r in rows
        ],
        "pages": [],
    }
    if pages is None:
        show(contents, as_markdown(rows, str(folder)))
        return
    from privaudit_tools.tables.utility_table import write_stored

    where = Path(os.path.relpath(folder, pages)).as_posix()
    changed = write_between(pages / MATRIX_PAGE, as_markdown(rows, where))
    written = [pages / MATRIX_PAGE] * changed + write_stored(pages, folder)
    written += write_answers(pages.parent, rows)
    contents["pages"] = [str(one) for one in written]
    said = f"{pages}: {len(rows)} rows, {len(written)} pages written."
    show(contents, lambda: _say(said))


def _say(line: str) -> None:
    typer.echo(line, err=True)


What = Annotated[
    Literal["attention", "table"],
    typer.Argument(
        help="attention: each expert's weight in the mixtures of pFedMoAP's runs; table: "
        "the numbers of a .json that `privaudit table` wrote."
    ),
]


def _path() -> Any:
    """Return the type of what ``table-figure`` prints."""
    from privaudit.cli.json_schemas import json_object

    return json_object("Written", path=str)


@partial(with_json, words="table-figure", load=_path)
def table_figure(
    what: What,
    run: Drawn = None,
    out: Out = None,
    runs: options.RunsFolder = None,
) -> None:
    """Plot runs or a stored table, and print the path of the figure."""
    from privaudit.runs.run import chosen_runs, runs_folder
    from privaudit_tools.tables.mixture_figure import write_mixture_figure

    path = out or runs_folder(runs) / f"{what}.svg"
    if what == "table":
        _draw_table(run or [], path)
    else:
        write_mixture_figure(chosen_runs(run, runs), path)
    show({"path": str(path)}, str(path))


def _draw_table(stored: Sequence[str], path: Path) -> None:
    from privaudit.report.figures.figure_style import write_figure
    from privaudit_tools.tables.stored import read_stored
    from privaudit_tools.tables.utility_figure import utility_figure

    if len(stored) != 1:
        raise ConfigError(
            f"A table's picture was requested of {len(stored)} files. Name one .json that "
            "`privaudit table` wrote."
        )
    read = read_stored(Path(stored[0]))
    if not read.cells:
        raise ConfigError(
            f"A table's picture was requested of {stored[0]}, which holds no cell with a "
            "number. Run its plan, and name the .json that `privaudit table` writes."
        )
    write_figure(utility_figure(read), path, "table", read.plan.title)
