"""The names of a run's own files, and the folders that they lie in."""

import re
from pathlib import Path

from privaudit.core.errors import ConfigError
from privaudit.core.storage import UNFINISHED, make_private_folder

HEADER = "run.json"
BEGUN = f".run{UNFINISHED}"  # there while a run's first files are written
PLAN = "plan.json"  # of audits, put there before training
CANARIES = "canaries.json"  # what they are, and whose: to be looked at
FOLDERS = ("transcript", "kept", "audits")
_NAME = r"[^/]+"
WRITTEN = re.compile(
    "|".join(
        (
            r"run\.json|plan\.json|privacy\.json|metrics\.jsonl|trace\.jsonl|ledger\.npz|canaries\.json|card\.key|bundle\.json",
            r"transcript/(manifest\.jsonl|round-\d{4,}\.safetensors)",
            r"kept/(after-\d{4,}|personal|server)\.safetensors",
            r"kept/(mask|run)\.key",
            rf"audits/{_NAME}/(audit\.json|scores\.npz|report\.html)",
            r"audits/log\.jsonl",
            r"audits/signals/[0-9a-f]{24}\.safetensors",
            rf"audits/(shift-{_NAME}\.(json|md)|table/{_NAME}\.json|index\.html)",
            rf"(({'|'.join(FOLDERS)})/({_NAME}/)?)?\.{_NAME}{re.escape(UNFINISHED)}",
        )
    )
)


def make_folders(path: Path, name: str) -> None:
    """Make the folders that a run's file lies in, private, and never through a link."""
    for folder in reversed((path / name).relative_to(path).parents[:-1]):
        refuse_link(path / folder)
        make_private_folder(path / folder)


def refuse_link(folder: Path) -> None:
    """Raise ConfigError if a run's folder leads elsewhere."""
    if folder.is_symlink():
        raise ConfigError(
            f"{folder} is a link, and a run's files are written into its own folder "
            "only. Put a folder in its place, or use another --name."
        )
