"""Runs altered by whoever has their key: other messages, other headers, signed again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from privaudit import Run
from privaudit.core.storage import file_hash
from privaudit.federation.transcript import ChainEnd, Message, TranscriptFolder
from privaudit.runs.run_header import ADDED, SIGNATURE, add_files, save_header


def alter_messages(
    run: Path, change: Callable[[Tensor], Tensor], among: Callable[[int, Message], bool]
) -> ChainEnd:
    """Change tensors of a run's messages, and return where the new chain ends.

    Args:
        run: The run's folder.
        change: Returns another tensor.
        among: Which messages, by their number and what they are.
    """
    end, folder = ChainEnd(), TranscriptFolder(run / "transcript")
    messages = [
        Message(
            m.round,
            m.sender,
            m.receiver,
            m.kind,
            {n: change(t) if among(i, m) else t for n, t in m.tensors.items()},
        )
        for i, m in enumerate(Run(run).transcript)
    ]
    folder.manifest.unlink()
    for index in sorted({m.round for m in messages}):
        end = folder.write(index, [m for m in messages if m.round == index], end)
    return end


def sign_again(run: Path, **fields: Any) -> None:
    """Sign a run as it now lies there, with other fields in its header."""
    header = json.loads((run / "run.json").read_text()) | fields
    later = header.pop(ADDED, {"files": {}})["files"]
    del header[SIGNATURE]
    for name in header.get("files", {}):
        if (run / name).exists():
            header["files"][name] = file_hash(run / name)
    save_header(run, header)
    there = {name: run / name for name in later if (run / name).exists()}
    if there:
        contents = {name: place.read_bytes() for name, place in there.items()}
        add_files(
            run,
            json.loads((run / "run.json").read_text())[SIGNATURE]["value"],
            contents,
        )
