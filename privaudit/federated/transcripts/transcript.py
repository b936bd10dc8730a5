"""What every party of a federated run sends and receives.

Besides a run's ledger and private states, which no adversary reaches, the transcript is
all a trainer leaves behind: whatever is not in it did not leak. It only grows, and each
message carries the hash of all before it, so that a changed or cut record is noticed.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from privaudit.core.bounded_files import read_lines
from privaudit.core.errors import MissingFileError, TranscriptError
from privaudit.core.storage import (
    append_lines,
    read_tensors,
    write_bytes,
    write_tensors,
)
from privaudit.core.tensors import Tensors, digest

SERVER = "server"
PUBLIC = "public"  # the receiver of what is given away
GENESIS = "0" * 64

Kind = Literal[
    "broadcast", "update", "individual-update", "release", "query", "sum",
    "keys", "shares", "masked", "complaint", "survivors", "signature", "signatures",
    "revealed-shares",
]  # fmt: skip
UPDATE_KINDS: frozenset[Kind] = frozenset(("update", "individual-update"))
"""One client's upload, in the clear: to be summed, or used by itself."""
UPLOAD_KINDS: frozenset[Kind] = UPDATE_KINDS | {"masked"}
MASKED_KINDS: frozenset[Kind] = frozenset((
    "keys", "shares", "masked", "complaint", "survivors", "signature", "signatures",
    "revealed-shares",
))  # fmt: skip
"""What clients and server send for a masked sum, in place of updates."""


@dataclass(frozen=True)
class Message:
    """Tensors that passed from one party to another in one round.

    Attributes:
        round: Counted from 0; the last broadcast and the releases come after the last
            round and bear its successor's number.
        sender: ``SERVER`` or a client's name.
        receiver: Likewise, or ``PUBLIC``.
        kind: What it is. "sum" is what a server learns of clients' updates: nobody
            sends it, and it stands in a transcript only where uploads were masked.
        tensors: By name, as the receiver gets them: after clipping, noise, compression.
    """

    round: int
    sender: str
    receiver: str
    kind: Kind
    tensors: Tensors

    @property
    def is_update(self) -> bool:
        """Whether it is one client's upload, in the clear."""
        return self.kind in UPDATE_KINDS

    def describe(self, digests: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the message with a digest in place of each tensor.

        Args:
            digests: By name, if they are known.
        """
        return {
            "round": self.round,
            "sender": self.sender,
            "receiver": self.receiver,
            "kind": self.kind,
            "tensors": digests or {n: digest(t) for n, t in self.tensors.items()},
        }


class Transcript:
    """Every message of one run, in the order in which they were sent."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self.head = GENESIS

    def append(self, message: Message) -> dict[str, Any]:
        """Record a message, and return its line of the manifest."""
        entry = message.describe()
        self.head = chain(self.head, entry)
        self.add(message)
        return {**entry, "hash": self.head}

    def add(self, message: Message) -> None:
        """Hold a message that follows from a recorded one: the head stays."""
        self._messages.append(message)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)


def size(message: Message) -> int:
    """Return a message's payload in bytes."""
    return sum(t.numel() * t.element_size() for t in message.tensors.values())


def bytes_sent(messages: Iterable[Message]) -> dict[str, int]:
    """Return the payload that went up to the server, or away, and down from it.

    Of a masked sum, all that its protocol sends; the sum itself is made by the server.
    """
    totals = {"up": 0, "down": 0}
    for message in messages:
        if message.kind != "sum":
            totals["down" if message.sender == SERVER else "up"] += size(message)
    return totals


def chain(head: str, entry: Mapping[str, Any]) -> str:
    """Return the hash of an entry and of all entries before it."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256((head + text).encode()).hexdigest()


_SHARD = re.compile(r"round-\d{4,}\.safetensors")


def shard_name(round: int) -> str:
    """Return the file of a round's tensors."""
    return f"round-{round:04d}.safetensors"


class TranscriptFolder:
    """A transcript on disk: a manifest, and one file of tensors for each round.

    Tensors are stored once under their digest, however many clients receive them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "manifest.jsonl"

    def write(
        self, round: int, messages: Sequence[Message], lines: list[dict[str, Any]]
    ) -> None:
        """Store what was sent in one round."""
        tensors = {
            line["tensors"][name]: tensor
            for message, line in zip(messages, lines, strict=True)
            for name, tensor in message.tensors.items()
        }
        write_tensors(self.folder / shard_name(round), tensors)
        append_lines(
            self.manifest, [json.dumps(line, sort_keys=True) for line in lines]
        )

    def clear(self) -> None:
        """Start an empty transcript in place of what is there."""
        self._keep([], Transcript())

    def truncate(self, *, head: str, length: int) -> Transcript:
        """Drop what a killed run wrote after its last checkpoint, and return the rest.

        The rest is checked first: nothing is dropped from a damaged transcript.

        Raises:
            TranscriptError: It was cut or altered before that checkpoint.
            MissingFileError: The manifest is gone.
        """
        lines = self._lines()[:length]
        transcript = self._check(lines, head=head, length=length)
        self._keep(lines, transcript)
        return transcript

    def read(self, *, head: str, length: int) -> Transcript:
        """Return the transcript, checked against its head and length.

        Raises:
            TranscriptError: It was cut or altered; the text says which file and round.
            MissingFileError: The manifest is gone.
        """
        return self._check(self._lines(), head=head, length=length)

    def _keep(self, lines: Sequence[bytes], transcript: Transcript) -> None:
        write_bytes(self.manifest, b"".join(line + b"\n" for line in lines))
        used = {shard_name(message.round) for message in transcript}
        for path in self.folder.glob("round-*.safetensors"):
            if _SHARD.fullmatch(path.name) and path.name not in used:
                path.unlink()

    def _check(self, lines: Sequence[bytes], *, head: str, length: int) -> Transcript:
        if len(lines) != length:
            raise TranscriptError(
                f"{self.manifest} has {len(lines)} messages, and the run recorded "
                f"{length}: it was {'cut' if len(lines) < length else 'added to'}. "
                "Restore it from a copy, or train again."
            )
        transcript, shards = Transcript(), _Shards(self.folder)
        for number, line in enumerate(lines, start=1):
            self._read_line(transcript, shards, number, line)
        if transcript.head != head:
            raise TranscriptError(
                f"{self.manifest} does not end as the run recorded: it was replaced. "
                "Restore it from a copy, or train again."
            )
        return transcript

    def _lines(self) -> list[bytes]:
        return read_lines(self.manifest)

    def _read_line(
        self, transcript: Transcript, shards: "_Shards", number: int, line: bytes
    ) -> None:
        try:
            entry = json.loads(line.decode())
            tensors = {
                name: shards.find(entry["round"], key)
                for name, key in entry["tensors"].items()
            }
            parts = {k: entry[k] for k in ("round", "sender", "receiver", "kind")}
            recorded = transcript.append(Message(**parts, tensors=tensors))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise TranscriptError(
                f"{self.manifest}, line {number} is not a message ({error!r}): it was "
                "cut or altered."
            ) from None
        if recorded != entry:
            raise TranscriptError(
                f"{self.manifest}, line {number} (round {entry['round']}, "
                f"{entry['sender']} to {entry['receiver']}): the hash chain is broken, "
                f"so this message, or its tensors in {shard_name(entry['round'])}, "
                "were altered."
            )


class _Shards:
    """The rounds' tensors, each file read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._round = -1
        self._tensors: dict[str, Tensor] = {}

    def find(self, round: int, key: str) -> Tensor:
        if round != self._round:
            path = self.folder / shard_name(round)
            try:
                self._tensors = read_tensors(path)
            except (TranscriptError, MissingFileError) as error:
                raise TranscriptError(f"Round {round}: {error}") from None
            self._round = round
        if key not in self._tensors:
            raise TranscriptError(
                f"Round {round}: {self.folder / shard_name(round)} lacks a tensor that "
                "the manifest names: it was altered."
            )
        return self._tensors[key]
