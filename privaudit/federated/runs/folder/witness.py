"""Notes of this machine on files that only grow, such as the log of audits.

A run's folder as it was before some audits is a folder that was signed: nothing in it
tells that it was put back. So the longest log that was seen here of each run is noted
beside the owner's key, out of reach of whoever can write in the run alone.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from privaudit.core.errors import ConfigError, StorageError, TranscriptError
from privaudit.core.signing import keys_folder
from privaudit.core.storage import make_private_folder, read_json, write_json

NOTES = "audited"  # the folder beside the owner's key


def remember(file: Path, seal: str, read: Callable[[], list[bytes]]) -> list[bytes]:
    """Return the lines of a file of a run, held against those that were seen here before.

    The longest are noted; nothing is where no folder of keys can be written. A run that
    is trained anew, or lies elsewhere, is another one.

    ``read`` returns the lines that the run lists. It is called once the note is read:
    what another process adds meanwhile is more than that.

    Raises:
        TranscriptError: They do not begin with those that were seen before.
    """
    place = _place(file, seal)
    before, digest = _noted(place)
    lines = read()
    if before and _hash(lines[:before]) != digest:
        raise TranscriptError(
            f"{file} has {len(lines)} lines, and once had {before}, with others among "
            f"them, as {place} notes: the run was put back to an earlier state, and "
            "audits of it would not be counted. Restore the latest copy, or train anew "
            "with --fresh. If nothing later is left, remove that note: what is said of "
            "the run then leaves those audits out."
        )
    if place is not None and len(lines) > before:
        with suppress(StorageError):  # keys beside which nothing is written are keys
            make_private_folder(place.parent)
            write_json(place, {"lines": len(lines), "sha256": _hash(lines)})
    return lines


def _noted(place: Path | None) -> tuple[int, str]:
    """Return how many lines were seen, and their hash; nothing where none is noted."""
    try:
        content = read_json(place) if place is not None and place.exists() else None
    except OSError:  # a folder that is closed to this user
        return 0, ""
    if content is None:
        return 0, ""
    match content:
        case {"lines": int(lines), "sha256": str(digest)} if lines > 0:
            return lines, digest
    raise TranscriptError(
        f"{place} is no note of a log of audits: it was overwritten. Restore it from a "
        "copy, or remove it: what is said of the run then leaves earlier audits out."
    )


def _place(file: Path, seal: str) -> Path | None:
    """Return where a file of a run is noted; None where keys have no place."""
    name = hashlib.sha256(json.dumps([seal, str(file.resolve())]).encode()).hexdigest()
    try:
        return keys_folder() / NOTES / f"{name[:32]}.json"
    except ConfigError:
        return None


def _hash(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
