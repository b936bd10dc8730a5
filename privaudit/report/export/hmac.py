"""Hashes that bind a card to a run, and tell nobody else anything.

The plain hash of a small truth can be guessed: of 20 candidates' membership there are a
million, and each guess is one hash. So such hashes leave only under a key of 256 random
bits, which stays with the run. Whoever has the run can check them, and nobody can
change the truth afterwards without a mismatch.
"""

import hashlib
import hmac
import secrets
from pathlib import Path

from privaudit.core.errors import MissingFileError, TranscriptError
from privaudit.federated.runs.runs import Run

KEY = "card.key"
_SIZE = 32  # bytes


def make_key(run: Run) -> bytes:
    """Return a run's key; the first call draws it from the operating system.

    Raises:
        StorageError: The run's folder cannot be written.
        TranscriptError: The key is there, and was altered or put there.
    """
    if KEY not in run.files or not (run.path / KEY).exists():
        run.add({KEY: secrets.token_hex(_SIZE).encode()})
    return read_key(run)


def read_key(run: Run) -> bytes:
    """Return the key that a run has.

    Raises:
        MissingFileError: It has none.
        TranscriptError: It was altered, or put there by somebody else.
    """
    path: Path = run.path / KEY
    try:
        encoded = run.read(KEY)
    except MissingFileError:
        raise MissingFileError(
            f"There is no {KEY} in {run.path}, so no sealed hash of a card can be "
            "checked. Restore it from a copy of the run, or export the run again."
        ) from None
    try:
        key = bytes.fromhex(encoded.decode())
    except ValueError:
        key = b""
    if len(key) != _SIZE:
        raise TranscriptError(
            f"{path} is no key of {_SIZE} bytes: it was cut or altered. Restore it "
            "from a copy, or remove it and export the run again."
        )
    return key


def seal(key: bytes, purpose: str, digest: str) -> str:
    """Return a hash under a key: HMAC-SHA-256 of what it is for and the hash.

    Example:
        >>> seal(b"key", "ledger", "00") == seal(b"key", "data", "00")
        False
    """
    return hmac.new(key, f"{purpose}|{digest}".encode(), hashlib.sha256).hexdigest()
