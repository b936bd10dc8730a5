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
        help="Only validate all runs, time a round of each setting, and print the cost; "
        "with a .json add it to the page, beside what the runs took.",
    ),
]
Page = Annotated[
    Path | None,
    options.file_option(
        "Page to write: HTML if it ends so, else Markdown, its figure beside the result."
    ),
]
OneMethod = Annotated[
    str | None, typer.Option("--method", help="Page of this row alone, by its label.")
]
Cards = Annotated[
    Path | None,
    typer.Option(
        help="With a .json: folder of audit cards of others' runs of its task, to verify "
        "and add."
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(help="Public key that signed the cards. By default: trusted ones."),
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
    method: OneMethod = None,
    cards: Cards = None,
    key: Key = None,
) -> None:
    """Rank methods by what they leak below early stopping at equal utility."""
    from privaudit.execution.executors import find_executor
    from privaudit.runs.run import runs_folder
    from privaudit.runs.store import url_of
    from privaudit_tools.equal_utility.benchmark import run_benchmark
    from privaudit_tools.equal_utility.plan import read_benchmark_plan

    for option, other, lacks in (
        ("--method", "--page", method and not page),
        ("--key", "--cards", key and not cards),
    ):
        if lacks:
            raise ConfigError(
                f"{option} was given without {other}, and says nothing alone. Give both, or "
                "neither."
            )
    if plan.suffix == ".json":
        if quick or out:
            raise ConfigError(
                f"{plan} is a result, of which the page is made: --quick and --out say "
                "nothing to it. Leave them out, or name the plan."
            )
        if runs:
            _check_place(plan.stem, runs)
        result = _with_cards(plan, cards, key or [])
        result = _with_forecast(result, plan) if check else result
        _report(result, plan, page, method, runs)
        return
    if cards:
        raise ConfigError(
            f"--cards was given with the plan {plan}, and cards are added to a result. "
            "Name the .json that this command wrote."
        )
    read = read_benchmark_plan(plan)
    wanted = read.quickly if quick else read
    if check:
        _print_cost(wanted, plan)
        return
    options.check_kept(runs)
    stored = (out or plan.parent) / f"{plan.stem}{'-quick' * quick}.json"
    place = runs_folder(runs)
    shown = None if url_of(place) else place  # what serve reads
    if shown:
        _check_place(stored.stem, shown)
    executor = find_executor(on)
    result = run_benchmark(
        wanted, stored, folder=runs, executor=executor, progress=_say
    )
    _report(result, stored, page, method, shown)


def _with_cards(stored: Path, cards: Path | None, keys: list[str]) -> "BenchmarkResult":
    """Return a result, with the cards of a folder in place of those that it had."""
    from privaudit.core.storage import write_json
    from privaudit_tools.equal_utility.benchmark import read_result
    from privaudit_tools.equal_utility.submissions import read_submissions

    result = read_result(stored)
    if cards is None:
        return result
    found = read_submissions(cards, result.plan, keys)
    result = result.model_copy(update={"cards": tuple(found)})
    write_json(stored, result.model_dump(mode="json"))
    _say(f"Verified and added: {len(found)} cards")
    return result


def _with_forecast(result: "BenchmarkResult", stored: Path) -> "BenchmarkResult":
    """Return a result with the cost of its plan, which is written down."""
    from privaudit.core.storage import write_json
    from privaudit_tools.equal_utility.benchmark import cost_of

    result = result.model_copy(update={"forecast": cost_of(result.plan, _say)})
    write_json(stored, result.model_dump(mode="json"))
    return result


def _print_cost(plan: "BenchmarkPlan", path: Path) -> None:
    """Print what a plan costs at most."""
    from privaudit_tools.equal_utility.benchmark import cost_of

    cost = cost_of(plan, _say)
    contents = {"plan": str(path), "runs": cost.runs, "seconds": cost.seconds}
    show(contents, f"{path}: {cost.runs} runs, {cost}.")


def _report(
    result: "BenchmarkResult",
    stored: Path,
    page: Path | None,
    method: str | None,
    runs: str | Path | None,
) -> None:
    from privaudit_tools.equal_utility.page import conclusions

    judged = result.judged
    if page:
        _write_page(result, stored, page, method)
    if runs:
        _show_beside_runs(result, stored.stem, Path(runs))
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


def _write_page(
    result: "BenchmarkResult", stored: Path, page: Path, method: str | None
) -> None:
    """Write the page of a benchmark, or of one of its rows."""
    from privaudit.report.figures.figure_style import write_figure
    from privaudit.runs.own_files import write_output
    from privaudit_tools.equal_utility.document import as_html, as_markdown
    from privaudit_tools.equal_utility.figure import plane
    from privaudit_tools.equal_utility.method_page import blocks_of_method
    from privaudit_tools.equal_utility.page import blocks_of

    plan, is_html = result.plan, page.suffix == ".html"
    asked = f' --method "{method}"' if method else ""
    command = f"privaudit benchmark {stored}{asked} --page {page}"
    picture = stored.with_suffix(".svg")
    if method:
        title, blocks = method, blocks_of_method(result, method, command)
    else:
        where = Path(os.path.relpath(picture, page.parent)).as_posix()
        title = plan.title if is_html else "Benchmark"
        blocks = blocks_of(result, command, where)
        if not is_html:
            write_figure(
                plane(result.judged, plan.measured), picture, "plane", plan.title
            )
    text = as_html(title, blocks) if is_html else as_markdown(title, blocks)
    write_output(page, text.encode())
    _say(f"Page: {page}")


def _check_place(name: str, runs: Path) -> None:
    """Refuse a place in which `privaudit serve` would not find a result."""
    from privaudit.runs.own_files import HEADER
    from privaudit.runs.store import url_of

    if url := url_of(runs):
        raise ConfigError(
            f"The result was to be shown beside the runs at {url}, and `privaudit serve` "
            "reads a folder. Give --runs a folder, or leave it out."
        )
    if (runs / name / HEADER).exists():
        raise ConfigError(
            f"The result was to be shown in {runs / name}, and a run lies there. Give "
            f"--runs another folder, or {name} another name."
        )


def _show_beside_runs(result: "BenchmarkResult", name: str, runs: Path) -> None:
    """Write a result into a folder of runs, where `privaudit serve` shows it."""
    from privaudit.core.storage import make_private_folder, write_json
    from privaudit_tools.equal_utility.benchmark import SERVED

    make_private_folder(runs / name)
    write_json(runs / name / SERVED, result.model_dump(mode="json"))


def _say(line: str) -> None:
    typer.echo(line, err=True)
