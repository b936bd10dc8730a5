"""Options for what a command writes where its user says: refused before it computes."""

from pathlib import Path
from typing import Any

import typer

from privaudit.core.errors import ConfigError, PrivauditError


def file(text: str | Path) -> Path:
    """Return a file that is to be written.

    Raises:
        PrivauditError: It is no place for an output.
    """
    from privaudit.federated.runs.folder.outputs import check_file

    path = _here(text)
    check_file(path)
    return path


def folder(text: str | Path) -> Path:
    """Return a folder for what is to be written.

    Raises:
        PrivauditError: It is no place for outputs.
    """
    from privaudit.federated.runs.folder.outputs import check_folder

    return check_folder(_here(text))


def file_option(text: str) -> Any:
    """Return the option of a file that a command writes, with its help."""
    return typer.Option(parser=file, metavar="PATH", help=text)


def folder_option(text: str) -> Any:
    """Return the option of a folder that a command writes into, with its help."""
    return typer.Option(parser=folder, metavar="PATH", help=text)


file_argument: Any = typer.Argument(
    parser=file, metavar="PATH", help="The file to write."
)


def _here(text: str | Path) -> Path:
    """Return what a path or a ``file://`` names on this machine."""
    from privaudit.federated.runs.folder.remote_store import local_path

    try:
        return local_path(text)
    except ConfigError as error:  # as one line; of a ValueError Typer makes a box
        raise PrivauditError(str(error)) from None
