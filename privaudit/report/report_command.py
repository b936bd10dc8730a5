"""The command ``privaudit report``: pages anew from what runs and sweeps have stored.

Nothing here imports torch before the command is called.
"""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from privaudit import cli_options as options
from privaudit.errors import MissingFileError

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
