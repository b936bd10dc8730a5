"""The command ``privaudit figure``: pictures of runs without an audit.

Nothing here imports torch before the command is called.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from privaudit import cli_options as options

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
    from privaudit.report.attention_figure import write_attention_figure
    from privaudit.run_names import runs_folder
    from privaudit.runs import latest_runs, load_run

    found = [load_run(one, folder=runs) for one in run or []] or latest_runs(runs)
    path = out or runs_folder(runs) / f"{what}.svg"
    write_attention_figure(found, path)
    typer.echo(path)
