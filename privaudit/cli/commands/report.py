"""The command ``privaudit report``: pages anew from what runs and sweeps have stored."""

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer

from privaudit.cli import options, outputs
from privaudit.cli.printing import show
from privaudit.core.errors import MissingFileError

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs, folders of runs, or output of `privaudit tradeoff`. By default: "
        "the latest runs."
    ),
]
ScenarioName = Annotated[
    str | None, typer.Option(help="One scenario. By default: all with an audit.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    run: Subjects = None,
    scenario: ScenarioName = None,
    open_page: Open = False,
    show_records: options.ShowRecords = False,
    runs: options.RunsFolder = None,
) -> None:
    """Write reports again from stored audits, with an index if there are several."""
    from privaudit.report.rewriting import rewrite_reports

    page = rewrite_reports(
        run or [], scenario=scenario, folder=runs, show_records=show_records
    )
    show({"page": str(page)}, str(page))
    if open_page:
        _open(page)


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        raise MissingFileError(
            f"No browser was found to open {page}. The page is written: open it "
            "yourself, or set $BROWSER."
        )


What = Annotated[
    Literal["attention", "table"],
    typer.Argument(
        help="attention: each expert's weight in the mixtures of pFedMoAP's runs; table: "
        "the numbers of a .json that `privaudit table` wrote."
    ),
]
Drawn = Annotated[
    list[str] | None,
    typer.Argument(help="Runs, by default the latest; or a table's .json."),
]
Out = Annotated[
    Path | None,
    outputs.file_option("An .svg or .png file. By default: RUNS/WHAT.svg."),
]


def figure(
    what: What,
    run: Drawn = None,
    out: Out = None,
    runs: options.RunsFolder = None,
) -> None:
    """Plot runs or a stored table, and print the path of the figure."""
    from privaudit.cli.plugins import find_command
    from privaudit.federated.runs.folder.run_names import chosen_runs, runs_folder

    path = out or runs_folder(runs) / f"{what}.svg"
    if what == "table":
        find_command("table-figure")(run or [], path)
        return
    from privaudit.report.figures.attention_figure import write_attention_figure

    write_attention_figure(chosen_runs(run, runs), path)
    show({"path": str(path)}, str(path))
