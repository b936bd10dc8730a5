"""The command ``privaudit report``: pages anew from what runs and sweeps have stored.

Nothing here imports torch before the command is called.
"""

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer

from privaudit.cli import options
from privaudit.core.errors import MissingFileError

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs, folders of runs, or what `privaudit tradeoff` wrote. By default: "
        "the runs last trained."
    ),
]
ScenarioName = Annotated[
    str | None, typer.Option(help="One alone. By default: all that were played.")
]
Open = Annotated[
    bool, typer.Option("--open", help="Show the page in the usual browser.")
]


def report(
    run: Subjects = None,
    scenario: ScenarioName = None,
    show: Open = False,
    show_records: options.ShowRecords = False,
    runs: options.RunsFolder = None,
) -> None:
    """Write reports anew from stored audits, with an index if there are several."""
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
            f"{page} was to be opened, and no browser was found. The page is written: "
            "open it yourself, or name a browser in $BROWSER."
        )


What = Annotated[
    Literal["attention"],
    typer.Argument(help="attention: each expert's share in pFedMoAP's mixtures."),
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
    """Draw runs, and say where the picture lies."""
    from privaudit.federated.runs.run_names import runs_folder
    from privaudit.federated.runs.runs import latest_runs, load_run
    from privaudit.report.figures.attention_figure import write_attention_figure

    found = [load_run(one, folder=runs) for one in run or []] or latest_runs(runs)
    path = out or runs_folder(runs) / f"{what}.svg"
    write_attention_figure(found, path)
    typer.echo(path)
