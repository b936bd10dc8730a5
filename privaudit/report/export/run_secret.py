"""The secret behind a run's cards: of their noise, and of what they commit to.

It follows from the owner's private key and the ledger, never from a seed, and is kept
with the run at its first export, so that whoever has the run makes the same card again.
A commitment is an HMAC: the plain hash of a small truth can be guessed, as there are a
million memberships of 20 candidates and each guess is one hash.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from privaudit.core.errors import TranscriptError
from privaudit.core.signing import own_key
from privaudit.core.streams import KEY, Stream, derive
from privaudit.evaluation.card import Sha
from privaudit.federated.runs.runs import Run

FILE = "card.key"


class _StoredSecret(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Sha
    released: tuple[Sha, ...]


@dataclass(frozen=True)
class RunSecret:
    """What makes a run's cards.

    Attributes:
        key: 256 bits.
        released: Digests of the numbers that its cards may have said.
    """

    key: bytes
    released: tuple[str, ...] = ()

    def noise(self, ledger: str, query: str) -> Stream:
        """Return what the noise of one query is drawn from: the same every time."""
        return Stream.of(self.key, f"noise of a card|{ledger}|{query}")

    def commit(self, purpose: str, digest: str) -> str:
        """Return what shows later that a digest is the same, and tells nobody which.

        Example:
            >>> one = RunSecret(bytes(32))
            >>> one.commit("ledger", "00") == one.commit("data", "00")
            False
        """
        text = f"{purpose}|{digest}".encode()
        return hmac.new(self.key, text, hashlib.sha256).hexdigest()


def secret_of(run: Run) -> RunSecret:
    """Return a run's secret: the one it keeps, or at first the owner's for its ledger.

    Raises:
        MissingFileError: It was kept, and is gone.
        TranscriptError: It was altered, or another version wrote it.
    """
    if FILE not in run.files:
        private = own_key().private_bytes_raw()
        return RunSecret(derive(private, f"cards of {run.truth.hash}", KEY))
    try:
        stored = _StoredSecret.model_validate_json(run.read(FILE))
    except ValidationError:
        raise TranscriptError(
            f"{run.place}/{FILE} is no secret of cards: another version wrote it. Use "
            "that version, or train again."
        ) from None
    return RunSecret(bytes.fromhex(stored.key), stored.released)


def keep(run: Run, secret: RunSecret, released: Iterable[str]) -> None:
    """Keep a run's secret with it, and what its cards may say.

    Raises:
        StorageError: The run's folder cannot be written.
    """
    known = dict.fromkeys([*secret.released, *released])
    if FILE in run.files and list(known) == list(secret.released):
        return
    content = {"key": secret.key.hex(), "released": list(known)}
    run.add({FILE: json.dumps(content).encode()})
