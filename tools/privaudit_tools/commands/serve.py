"""``privaudit serve``: the command, on a socket of this machine alone."""

import secrets
import socket
from contextlib import suppress
from typing import Annotated

import typer

from privaudit.core.errors import ConfigError, MissingFileError, shown

HOST = "127.0.0.1"  # there is no option: nobody else is to reach it

ServedFolder = Annotated[
    str | None, typer.Argument(help="Folder of all runs. By default: ./runs.")
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="0: one that the system chooses.")
]


def serve(runs: ServedFolder = None, port: Port = 8765) -> None:
    """Show runs, audits and trade-offs in the browser of this machine, read-only."""
    from privaudit.runs.run import runs_folder
    from privaudit.runs.store import url_of

    folder = runs_folder(runs)
    if url := url_of(folder):
        raise ConfigError(
            f"privaudit serve shows a folder of this machine, and {shown(url)} is a "
            f"store. Name a folder; `privaudit status {shown(url)}` shows the store."
        )
    if not folder.is_dir():
        raise MissingFileError(
            f"There is no folder {folder} to show. Name the folder of runs, or train a "
            "run with `privaudit train`."
        )
    try:
        from privaudit_tools.serve.app import make_server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ConfigError(
            f"privaudit serve needs {error.name}, which is not installed. Install it "
            f"with `pip install './tools[serve]'` of a clone."
        ) from None
    with _listening(port) as listening:
        port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
        server = make_server(folder, token, port, read_ahead=True)
        typer.echo(
            f"{folder} is shown, read-only, on this machine until Ctrl-C. Open (works "
            f"once):\nhttp://{HOST}:{port}/?token={token}"
        )
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigError(
            f"Port {port} of this machine cannot be used: {error.strerror}. Choose "
            "another --port, or 0 for one that is free."
        ) from None
