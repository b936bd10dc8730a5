"""A transcript on disk: one line for what was sent, and one file of tensors a round."""

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from torch import Tensor

from privaudit.core.bounded_files import read_lines
from privaudit.core.errors import TranscriptError
from privaudit.core.limits import check_limit
from privaudit.core.storage import append_lines, write_bytes, write_tensors
from privaudit.core.tensors import digest
from privaudit.federated.transcripts.shards import Shard, StoredTensors, unique
from privaudit.federated.transcripts.transcript import (
    ChainEnd,
    Kind,
    Message,
    Transcript,
)

_COMMON = ("round", "sender", "kind")  # what the messages of a line share, and tensors
_SHARD = re.compile(r"round-\d{4,}\.safetensors")


def shard_name(round: int) -> str:
    """Return the file of a round's tensors."""
    return f"round-{round:04d}.safetensors"


class RoundTensors:
    """The tensors of one round: each is digested and stored once.

    Attributes:
        by_digest: What is stored.
    """

    def __init__(self) -> None:
        self.by_digest: dict[str, Tensor] = {}
        self._known: dict[int, tuple[Tensor, str]] = {}  # held, so that ids stay theirs

    def key_of(self, tensor: Tensor) -> str:
        """Return the digest of a tensor, which from now on is stored."""
        if not self.holds(tensor):
            self._add(tensor, digest(tensor))
        return self._known[id(tensor)][1]

    def holds(self, value: object) -> bool:
        """Say whether this very tensor is stored, or one like it."""
        return id(value) in self._known

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return a stored tensor that is as this one is now."""
        key = digest(tensor)
        if key not in self.by_digest:
            self._add(tensor.clone(), key)
        return self.by_digest[key]

    def _add(self, tensor: Tensor, key: str) -> None:
        self._known[id(tensor)] = tensor, key
        self.by_digest.setdefault(key, tensor)

    def describe(self, message: Message) -> dict[str, Any]:
        """Return a message's line but for who receives it, and for its hash."""
        keys = {name: self.key_of(tensor) for name, tensor in message.tensors.items()}
        fields = {field: getattr(message, field) for field in _COMMON}
        return {**fields, "tensors": keys}


class TranscriptFolder:
    """A transcript on disk: a manifest, and one file of tensors for each round.

    Tensors are stored once under their digest, however many clients receive them.

    ``append`` adds lines to the manifest, by default to the file of that name;
    ``ready`` raises if what is about to be changed is another's by now.
    """

    def __init__(
        self,
        folder: Path,
        append: Callable[[list[str]], None] | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self._ready = folder, ready
        self.manifest = folder / "manifest.jsonl"
        self._append = append or partial(append_lines, self.manifest)

    def write(
        self,
        round: int,
        messages: Sequence[Message],
        end: ChainEnd,
        tensors: "RoundTensors | None" = None,
    ) -> ChainEnd:
        """Store what was sent in one round, and return where the chain then ends.

        Messages that follow each other and differ in nothing but who receives them
        become one line.

        ``tensors`` are those of the messages, where their digests are known.
        """
        tensors, lines = tensors or RoundTensors(), []
        described = ((tensors.describe(one), one.receiver) for one in messages)
        for entry, group in groupby(described, key=itemgetter(0)):
            line = {**entry, "receivers": [receiver for _, receiver in group]}
            end = end.after(line)
            lines.append(json.dumps({**line, "hash": end.head}, sort_keys=True))
        write_tensors(self.folder / shard_name(round), tensors.by_digest, self._ready)
        self._append(lines)
        return end

    def clear(self) -> None:
        """Start an empty transcript in place of what is there."""
        self._keep([], Transcript())

    def truncate(self, *, head: str, length: int) -> Transcript:
        """Drop what a killed run wrote after its last checkpoint, and return the rest.

        The rest is checked first, with every tensor: nothing is dropped from a damaged
        transcript.

        Raises:
            TranscriptError: It was cut or altered before that checkpoint.
            MissingFileError: The manifest is gone.
        """
        lines = read_lines(self.manifest)[:length]
        transcript = self._read(lines, ChainEnd(head, length)).check()
        self._keep(lines, transcript)
        return transcript

    def read(self, *, head: str, length: int) -> Transcript:
        """Return the transcript; its lines are checked, and that their tensors exist.

        Each tensor is checked when it is asked for, or by :meth:`Transcript.check`.

        Raises:
            TranscriptError: It was cut or altered; the text says which file and round.
            MissingFileError: The manifest is gone.
        """
        return self._read(read_lines(self.manifest), ChainEnd(head, length))

    def _keep(self, lines: Sequence[bytes], transcript: Transcript) -> None:
        content = b"".join(line + b"\n" for line in lines)
        write_bytes(self.manifest, content, self._ready)
        used = {shard.path.name for shard in transcript.shards}
        for path in self.folder.glob("round-*.safetensors"):
            if _SHARD.fullmatch(path.name) and path.name not in used:
                self._ready()
                path.unlink()

    def _read(self, lines: Sequence[bytes], end: ChainEnd) -> Transcript:
        if len(lines) != end.length:
            raise TranscriptError(
                f"{self.manifest} has {len(lines)} lines, and the run recorded "
                f"{end.length}: it was {'cut' if len(lines) < end.length else 'added to'}"
                ". Restore it from a copy, or train again."
            )
        reader = _Reader(self)
        for number, line in enumerate(lines, start=1):
            reader.add(number, line)
        if reader.end.head != end.head:
            raise TranscriptError(
                f"{self.manifest} does not end as the run recorded: it was replaced. "
                "Restore it from a copy, or train again."
            )
        return Transcript(reader.messages, reader.end, reader.shards.values())


class _Line(NamedTuple):
    """A line of a manifest."""

    round: int
    sender: str
    receivers: list[str]
    kind: Kind
    tensors: dict[str, str]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "_Line":
        """Return a line without its hash.

        Raises:
            KeyError: A field is missing.
            TypeError: One is of another type.
        """
        line = cls(*(entry[field] for field in cls._fields))
        texts = (line.sender, line.kind, *line.receivers, *line.tensors.values())
        if type(line.round) is not int or not all(type(text) is str for text in texts):
            raise TypeError("a field is of another type")
        if type(line.receivers) is not list or not line.receivers:
            raise TypeError("it has no list of receivers")
        return line


class _Reader:
    """The lines of a manifest that were read so far."""

    def __init__(self, folder: TranscriptFolder) -> None:
        self.folder = folder
        self.end = ChainEnd()
        self.messages: list[Message] = []
        self.shards: dict[int, Shard] = {}
        self._held: dict[Hashable, StoredTensors] = {}

    def add(self, number: int, line: bytes) -> None:
        """Take a line, if it continues the chain.

        Raises:
            TranscriptError: It does not, or its tensors are not there.
            LimitError: There are more messages than a bound.
        """
        place = f"{self.folder.manifest}, line {number}"
        try:
            entry = json.loads(line.decode(), object_pairs_hook=unique)
            sent = _Line.of(entry)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise TranscriptError(
                f"{place} is not a message ({error!r}): it was cut or altered."
            ) from None
        fields = sent._asdict()
        self.end = self.end.after(fields)
        if {**fields, "hash": self.end.head} != entry:
            raise TranscriptError(
                f"{place} (round {sent.round}, {sent.sender} to "
                f"{', '.join(sent.receivers[:3])}): the hash chain is broken, so this "
                "line, or one before it, was altered."
            )
        count = len(self.messages) + len(sent.receivers)
        check_limit("records", count, str(self.folder.manifest))
        tensors = self._stored(sent)
        sender = intern(sent.sender)
        self.messages += (
            Message(sent.round, sender, intern(receiver), sent.kind, tensors)
            for receiver in sent.receivers
        )

    def _stored(self, line: _Line) -> StoredTensors:
        """Return a line's tensors; equal ones of a round are the same."""
        if line.round not in self.shards:
            path = self.folder.folder / shard_name(line.round)
            self.shards[line.round] = Shard(path, line.round)
        keys = {intern(name): key for name, key in line.tensors.items()}
        same = line.round, *keys.items()
        if same not in self._held:
            self._held[same] = StoredTensors(self.shards[line.round], keys)
        return self._held[same]
