"""Commands ``report`` and ``figure``: pages and pictures of what runs and sweeps have stored."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from privaudit.cli import options
from privaudit.cli.printing import as_json, show
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
    from privaudit.report.index import rewrite_reports

    page = rewrite_reports(
        run or [], scenario=scenario, folder=runs, show_records=show_records
    )
    show({"page": str(page)}, str(page))
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        raise MissingFileError(
            f"No browser was found to open {page}. The page is written: open it "
            "yourself, or set $BROWSER."
        )


What = Annotated[
    str,
    typer.Argument(
        help="Of audits: roc, tradeoff, clients, classes, attacks, rounds, exposure, "
        "properties, epsilon, server, closeness. With `pip install ./tools` of a clone, "
        "attention: each expert's weight in the mixtures of pFedMoAP's runs; table: the "
        "numbers of a .json that `privaudit table` wrote."
    ),
]
Drawn = Annotated[
    list[str] | None,
    typer.Argument(help="Runs, by default the latest; or a table's .json."),
]
Out = Annotated[
    Path | None,
    options.file_option("An .svg, .pdf or .png file. By default: RUNS/WHAT.svg."),
]


def figure(
    what: What,
    run: Drawn = None,
    out: Out = None,
    scenario: ScenarioName = None,
    runs: options.RunsFolder = None,
) -> None:
    """Plot audits, runs or a stored table, and print the path of the figure."""
    from privaudit.cli.plugins import find_command
    from privaudit.report.index import stored_audits
    from privaudit.report.page import write_audit_figure
    from privaudit.runs.run import runs_folder

    path = out or runs_folder(runs) / f"{what}.svg"
    if what in ("attention", "table"):
        asked = {"what": what, "run": run, "out": path, "runs": runs}
        find_command("table-figure")(in_json=as_json.get(), **asked)
    else:
        write_audit_figure(what, stored_audits(run or [], scenario, runs), path)
        show({"path": str(path)}, str(path))
