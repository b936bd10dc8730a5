"""``privaudit benchmark``: methods by what they leak below early stopping."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import show, with_json
from privaudit.core.errors import ConfigError

if TYPE_CHECKING:
    from privaudit_tools.equal_utility.benchmark import BenchmarkResult
    from privaudit_tools.equal_utility.plan import BenchmarkPlan

PlanFile = Annotated[
    Path,
    typer.Argument(
        help="A TOML file: a task, a curve, methods and seeds; or the .json that this "
        "command wrote, of which only the page is made."
    ),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Some methods and fewer seeds, as the plan says."),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Only validate all runs, time a round of each setting, and print the cost.",
    ),
]
Page = Annotated[
    Path | None, options.file_option("Page to write, its figure beside the result.")
]
Out = Annotated[
    Path | None,
    options.folder_option("Folder of result and seal. By default: the plan's."),
]


def _printed() -> Any:
    """Return the type of what is printed: costs, or where each row stands."""
    from privaudit.cli.json_schemas import json_object

    row = json_object(
        "Row",
        method=str,
        setting=str,
        where=str | None,
        below=float | None,
        p=float | None,
    )
    return json_object("Checked", plan=str, runs=int, seconds=float) | json_object(
        "Benchmark",
        path=str,
        rows=list[row],  # type: ignore[valid-type]
        failed=int,
    )


@partial(with_json, words="benchmark", load=_printed)
@options.with_computing
def benchmark(
    plan: PlanFile,
    quick: Quick = False,
    check: Check = False,
    runs: options.RunsFolder = None,
    on: options.On = "local",
    out: Out = None,
    page: Page = None,
) -> None:
    """Rank methods by what they leak below early stopping at equal utility."""
    from privaudit.execution.executors import find_executor
    from privaudit_tools.equal_utility.benchmark import read_result, run_benchmark
    from privaudit_tools.equal_utility.plan import read_benchmark_plan

    if plan.suffix == ".json":
        if quick or check or out:
            raise ConfigError(
                f"{plan} is a result, of which the page is made: --quick, --check and "
                "--out say nothing to it. Leave them out, or name the plan."
            )
        _report(read_result(plan), plan, page)
        return
    read = read_benchmark_plan(plan)
    wanted = read.quickly if quick else read
    if check:
        _print_cost(wanted, plan)
        return
    options.check_kept(runs)
    stored = (out or plan.parent) / f"{plan.stem}{'-quick' * quick}.json"
    executor = find_executor(on)
    result = run_benchmark(
        wanted, stored, folder=runs, executor=executor, progress=_say
    )
    _report(result, stored, page)


def _print_cost(plan: "BenchmarkPlan", path: Path) -> None:
    """Print what a plan costs at most: tuning of all settings, then one of each row."""
    from privaudit_tools.costs.forecast import forecast
    from privaudit_tools.equal_utility.benchmark import entries_of

    tuning = entries_of(plan, plan.tuning_seeds)
    first = {entry.row: entry for entry in reversed(tuning)}
    later = [entry.run for entry in first.values()] * len(plan.evaluation_seeds)
    looks = 1 + len(plan.looks)
    runs = [*(entry.run for entry in tuning), *later]
    cost = forecast(runs, plan.shadows, looks=looks)
    contents = {"plan": str(path), "runs": cost.runs, "seconds": cost.seconds}
    show(contents, f"{path}: {cost.runs} runs, {cost}.")


def _report(result: "BenchmarkResult", stored: Path, page: Path | None) -> None:
    from privaudit.report.figures.figure_style import write_figure
    from privaudit.runs.own_files import write_output
    from privaudit_tools.equal_utility.figure import plane
    from privaudit_tools.equal_utility.page import as_page, conclusions

    judged = result.judged
    if page:
        picture = stored.with_suffix(".svg")
        write_figure(plane(judged), picture, "plane", result.plan.title)
        where = Path(os.path.relpath(picture, page.parent)).as_posix()
        text = as_page(result, f"privaudit benchmark {stored} --page {page}", where)
        write_output(page, text.encode())
        _say(f"Page: {page}")
    rows = [
        {
            "method": row.method.label,
            "setting": row.choice.setting,
            "where": row.standing and row.standing.where,
            "below": row.standing and row.standing.distance.value,
            "p": row.p,
        }
        for row in judged.rows
    ]
    failed = sum(bool(run.error) for run in result.runs)
    contents = {"path": str(stored), "rows": rows, "failed": failed}
    show(contents, "\n".join(conclusions(result, judged)))
    _say(f"Result: {stored}")
    if failed:
        _say(f"{failed} of {len(result.runs)} runs failed.")
        raise typer.Exit(1)


def _say(line: str) -> None:
    typer.echo(line, err=True)
