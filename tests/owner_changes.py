"""What only who has the key can do: change a run's files and sign it again."""

import json
from pathlib import Path
from typing import Any

from privaudit.core.storage import file_hash
from privaudit.federated.runs.folder.run_header import (
    ADDED,
    SIGNATURE,
    add_files,
    save_header,
)


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
