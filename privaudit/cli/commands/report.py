"""The command ``privaudit report``: pages anew from what runs and sweeps have stored."""

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer

from privaudit.cli import options
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
    show: Open = False,
    show_records: options.ShowRecords = False,
    runs: options.RunsFolder = None,
) -> None:
    """Write reports again from stored audits, with an index if there are several."""
    from privaudit.report.rewriting import rewrite_reports

    page = rewrite_reports(
        run or [], scenario=scenario, folder=runs, show_records=show_records
    )
    typer.echo(page)
    if show:
        _open(page)


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        raise MissingFileError(
            f"No browser was found to open {page}. The page is written: open it "
            "yourself, or set $BROWSER."
        )


What = Annotated[
    Literal["attention"],
    typer.Argument(help="attention: each expert's weight in pFedMoAP's mixtures."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="An .svg or .png file. By default: RUNS/attention.svg."),
]


def figure(
    what: What,
    run: options.Runs = None,
    out: Out = None,
    runs: options.RunsFolder = None,
) -> None:
    """Plot runs, and print the path of the figure."""
    from privaudit.federated.runs.folder.run_names import chosen_runs, runs_folder
    from privaudit.report.figures.attention_figure import write_attention_figure

    path = out or runs_folder(runs) / f"{what}.svg"
    write_attention_figure(chosen_runs(run, runs), path)
    typer.echo(path)
