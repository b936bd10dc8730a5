"""run.json: what a run is, the hash of each of its files, and whose signature is on it.

  ...         configuration, versions, hashes of data, model, ledger, transcript, files
  signature   of all that, by who trained
  added       files that came later (audits) by hash, and the signature of who made
              them, on these hashes and the first signature; the trainer signs that
              there are none yet

The first signature is never made again after the last round, so that an audit by
somebody else leaves it as it was. It says that there is a list of what was added: who
has no key cannot make one that leaves audits out.

What only grows, such as the log of audits, is also held against the longest that was
seen here: a run's folder as it was before some audits is a folder that was signed, and
nothing in it tells that it was put back. So that is noted beside the owner's key, out of
reach of whoever can write in the run alone.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, NonNegativeInt, ValidationError

from privaudit.core.errors import ConfigError, StorageError, TranscriptError
from privaudit.core.limits import read_lines
from privaudit.core.signing import Signer, check_signature, keys_folder, sign
from privaudit.core.storage import (
    make_private_folder,
    read_json,
    write_bytes,
    write_json,
)
from privaudit.runs.lease import Lease
from privaudit.runs.own_files import HEADER, make_folders
from privaudit.runs.run_folder import lock_run
from privaudit.runs.store import push

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


FORMAT = 3  # of the run directory; raised when an older reader would misread it
SIGNATURE, ADDED = "signature", "added"
COUNTS = "counts_audits"  # that there is a list of what was added, from the start
_RUN, _LATER = "run", "files added to a run"  # what signatures are for
_PATIENCE = 60.0  # seconds for which another process may hold a finished run


class _Progress(BaseModel):
    rounds: NonNegativeInt
    length: NonNegativeInt
    head: str
    metrics_hash: str
    trace_hash: str | None = None
    checkpoint_hash: str | None


class _Header(BaseModel):
    """What run.json must hold besides the format."""

    privaudit: str
    origin: str = ""
    libraries: dict[str, str]
    threads: int
    computed: dict[str, Any] = {}
    processor: str = ""
    device: dict[str, Any] = {}
    earlier: list[dict[str, Any]] = []
    equal_bytes: bool = True
    remote_code: bool = False
    counts_audits: bool = False
    config: dict[str, Any]
    identity_hash: str = ""
    model_hash: str
    data_hash: str
    ledger_hash: str
    progress: _Progress
    files: dict[str, str] = {}


@dataclass(frozen=True)
class SignedHeader:
    """run.json, checked.

    Attributes:
        content: All but signatures and what was added.
        signer: Who vouches for it: who trained.
        added: SHA-256 of files that came later, by their path in the run.
        auditor: Who vouches for those; None if there are none.
        seal: The first signature, which differs between any two runs.
    """

    content: dict[str, Any]
    signer: Signer
    added: Mapping[str, str]
    auditor: Signer | None
    seal: str

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of every file that was written as a whole, by its path."""
        return {**self.content.get("files", {}), **self.added}


def save_header(
    path: Path, header: Mapping[str, Any], lease: Lease | None = None
) -> None:
    """Sign and write run.json: the point at which a round counts as done.

    Raises:
        RunInUseError: The lease was taken over; run.json stays as it was.
        StorageError: The folder cannot be written.
    """
    content = {**header, COUNTS: True}
    first = sign(_RUN, content)
    added = _signed_list(first["value"], {})
    _write(path, {**content, SIGNATURE: first, ADDED: added}, lease)


def _write(path: Path, content: Mapping[str, Any], lease: Lease | None) -> None:
    """Write run.json if the lease holds once the new file is there to be renamed.

    Who takes the run over removes that file first.
    """
    check = lease.check if lease is not None else lambda: None
    write_json(path / HEADER, content, check)
    push(path, check)


def read_header(path: Path) -> SignedHeader:
    """Return what run.json says.

    Raises:
        MissingFileError: There is none.
        TranscriptError: It was altered, is damaged, or of another version.
        TrustError: It is signed by a key that is not trusted.
    """
    place = path / HEADER
    content = read_json(place)
    if content.get("format") != FORMAT:
        raise TranscriptError(
            f"{path} was written in run format {content.get('format')} by "
            f"privaudit {content.get('privaudit', '?')}, and this version reads "
            f"format {FORMAT}. Use that version, or train again."
        )
    signature, later = content.pop(SIGNATURE, None), content.pop(ADDED, None)
    signer = check_signature(_RUN, content, signature, place)
    _check_fields(place, content)
    seal: str = signature["value"]
    if later is None and content.get(COUNTS):
        raise TranscriptError(
            f"{place} lacks the signed list of what was added to the run, by which its "
            "audits are counted: it was cut. Restore it from a copy, or train anew with "
            "--fresh."
        )
    if later is None:
        return SignedHeader(content, signer, {}, None, seal)
    added, auditor = _read_added(place, seal, later)
    return SignedHeader(content, signer, added, auditor if added else None, seal)


def _check_fields(place: Path, content: Mapping[str, Any]) -> None:
    try:
        _Header.model_validate(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise TranscriptError(
            f"{place} is damaged at "
            f"{'.'.join(map(str, first['loc']))} ({first['msg']}): it was altered, "
            "or written by another version. Restore it from a copy, or train again."
        ) from None


def _read_added(place: Path, seal: str, later: Any) -> tuple[dict[str, str], Signer]:
    """Return hashes of files that were added, and who vouches for them."""
    is_table = isinstance(later, dict) and isinstance(later.get("files"), dict)
    files = later["files"] if is_table else {}
    signature = later.get(SIGNATURE) if is_table else None
    content = {"run": seal, "files": files}
    return files, check_signature(_LATER, content, signature, place)


def counted_lines(file: Path, listed: str | None) -> list[bytes]:
    """Return the lines of a file that only grows, those that run.json lists.

    What a killed process wrote behind them does not count: one line at most.

    ``listed`` is the SHA-256 of the lines that count; None where there is no such file.

    Raises:
        MissingFileError: It is gone.
        LimitError: It is larger than a bound.
        TranscriptError: It was cut or altered, or holds more than run.json lists.
    """
    if listed is None and not file.exists():
        return []
    lines, digest = read_lines(file), hashlib.sha256()
    if listed is None:
        _refuse_surplus(file, len(lines), 0)
        return []
    for count, line in enumerate(lines, start=1):
        digest.update(line + b"\n")
        if digest.hexdigest() == listed:
            _refuse_surplus(file, len(lines), count)
            return lines[:count]
    raise TranscriptError(
        f"{file} does not hold the lines that its run lists: it was cut or altered. "
        "Restore it from a copy."
    )


def grown_lines(
    path: Path, seal: str, name: str, latest: Callable[[], SignedHeader]
) -> list[bytes]:
    """Return the lines of a file of a run that only grows, held against all seen here.

    Raises:
        MissingFileError: It is gone.
        LimitError: It is larger than a bound.
        TranscriptError: It was cut or altered, or is older than what was seen before.
    """
    file = path / name
    return remember(file, seal, lambda: counted_lines(file, latest().added.get(name)))


def _refuse_surplus(file: Path, there: int, listed: int) -> None:
    """Refuse lines that no kill explains: run.json is older than the file."""
    if there - listed > 1:
        raise TranscriptError(
            f"{file} holds {there} lines, and its run lists {listed} of them: run.json "
            "is older than the file, and the rest would be lost. Restore the run.json "
            "that was there with it, or train anew with --fresh."
        )


def add_files(
    path: Path,
    seal: str,
    contents: Mapping[str, bytes],
    lines: Mapping[str, bytes] | None = None,
) -> None:
    """Write files into a finished run, and list them in its header.

    Others who do the same wait for one another, so no entry is lost. A kill leaves
    files that the header does not list, or lists with another hash: they are refused
    until they are made again.

    ``seal`` is of the header that the files were made from. Names are paths in the run,
    with folders at most two deep; ``lines`` are added each to a file that only grows.

    Raises:
        ConfigError: The run was trained anew since.
        TranscriptError: A file that only grows was cut or altered.
        RunInUseError: It is being trained.
        StorageError: The folder cannot be written.
    """
    with lock_run(path, patience=_PATIENCE) as lease:
        header = read_header(path)  # as others left it
        if header.seal != seal:
            raise ConfigError(
                f"{path} was trained again since this was begun, so that its results "
                "would be of a run that is no more. Run the same command again."
            )
        grown = {
            name: [*grown_lines(path, seal, name, lambda: header), line]
            for name, line in (lines or {}).items()
        }
        written = dict(contents)
        for name, there in grown.items():
            written[name] = b"".join(one + b"\n" for one in there)
        for name, content in written.items():
            make_folders(path, name)
            write_bytes(path / name, content, lease.check)
        hashes = {n: hashlib.sha256(c).hexdigest() for n, c in written.items()}
        first = read_json(path / HEADER)[SIGNATURE]
        added = _signed_list(header.seal, {**header.added, **hashes})
        _write(path, {**header.content, SIGNATURE: first, ADDED: added}, lease)
        for name, there in grown.items():
            remember(path / name, seal, partial(list, there))


def _signed_list(seal: str, files: Mapping[str, str]) -> dict[str, Any]:
    signature = sign(_LATER, {"run": seal, "files": files})
    return {"files": dict(sorted(files.items())), SIGNATURE: signature}
