"""``privaudit import``: a federation that others recorded becomes a run."""

from pathlib import Path
from typing import Annotated

import typer

from privaudit.cli import options

Recorded = Annotated[
    Path, typer.Argument(help="The folder: transcript/ and bundle.json.")
]
LedgerFile = Annotated[
    Path,
    typer.Option(
        help="Who owned and who trained on which record: from `privaudit split`."
    ),
]


def import_recording(
    folder: Recorded,
    ledger: LedgerFile,
    as_json: options.AsJson = False,
) -> None:
    """Join a recorded federation with its ledger, check both, and sign the run."""
    import json

    from privaudit.recording.importing import finish_recording

    run = finish_recording(folder, ledger)
    config = run.config
    contents = {
        "run": run.name,
        "path": str(run.path),
        "messages": len(run.transcript),
        "rounds": config.rounds,
        "clients": config.clients,
        "certified": run.privacy["certified"],
    }
    if as_json:
        typer.echo(json.dumps(contents, indent=2))
        return
    typer.echo(
        f"{run.name}: {config.rounds} rounds of {config.clients} clients, "
        f"{contents['messages']} messages.\n"
        f"Attack it with: privaudit attack {run.path} --owner FILE.py"
    )
