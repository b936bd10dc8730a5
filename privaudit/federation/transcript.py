"""The transcript: what every party of a run sends and receives, in memory and on disk.

Besides a run's ledger and private states, which no adversary reaches, the transcript is
all a trainer leaves behind: whatever is not in it did not leak. It only grows, and each
line of it carries the hash of all before, so that a changed or cut record is noticed.

On disk it is a line for what was sent, and one safetensors file of tensors a round,
which is read in plain, bounded pieces and not mapped: a mapped file that is cut while it
is used ends the process. Whatever is read is held against its digest, which covers type,
shape and content. So nothing that the header says is believed: a file that is replaced
between two reads, or whose header names another place, is noticed.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakValueDictionary

from privaudit.core.errors import LimitError, MissingFileError, TranscriptError
from privaudit.core.lazy_torch import Tensor, late, torch
from privaudit.core.limits import (
    check_json,
    check_limit,
    open_regular,
    read_lines,
    reading_errors,
)
from privaudit.core.storage import (
    SAFETENSORS_TYPES,
    append_lines,
    write_bytes,
    write_tensors,
)
from privaudit.core.tensors import LazyTensors, Tensors, digest

_TYPES = late(lambda: {name: dtype for dtype, name in SAFETENSORS_TYPES.items()})
_LENGTH = 8  # bytes that say how long the header is


class _Place(NamedTuple):
    """Where a tensor lies in the file, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class Shard:
    """The tensors of a round, by their digests.

    Those that somebody holds are shared; the others are read anew.

    Raises:
        TranscriptError: The file is gone, was cut or altered, in any method.
        LimitError: Its header, or a tensor that is read, is larger than a bound.
    """

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round
        self.used: dict[str, None] = {}
        """Digests that a manifest names, in its order."""
        self._alive: WeakValueDictionary[str, Tensor] = WeakValueDictionary()
        try:
            with reading_errors(path):
                self._places = _read_header(path)
        except MissingFileError as error:
            raise TranscriptError(f"Round {round}: {error}") from None
        except LimitError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(str(error)) from None

    def use(self, key: str) -> int:
        """Note that a manifest names a tensor, and return its bytes.

        Raises:
            TranscriptError: It is not there.
        """
        if key not in self._places:
            raise TranscriptError(
                f"Round {self.round}: {self.path} lacks a tensor that the manifest "
                "names: it was altered."
            )
        self.used[key] = None
        return self._places[key].nbytes

    def read(self, key: str) -> Tensor:
        """Return a tensor, held against its digest."""
        tensor = self._alive.get(key)
        if tensor is None:
            tensor = self._alive[key] = self._read(self._places[key], key)
        return tensor

    def check(self) -> None:
        """Read every tensor that the manifest names, one after the other."""
        for key in self.used:
            self.read(key)

    def _read(self, place: _Place, key: str) -> Tensor:
        check_limit("tensors", place.nbytes, f"A tensor in {self.path}")
        try:
            with reading_errors(self.path):
                content = _read_content(self.path, place)
        except MissingFileError as error:
            raise TranscriptError(f"Round {self.round}: {error}") from None
        except (RuntimeError, ValueError, OverflowError) as error:
            raise self._damaged(str(error)) from None
        if digest(content) != key:
            raise self._damaged("the hash of a tensor of this round is another")
        return content

    def _damaged(self, reason: str) -> TranscriptError:
        return TranscriptError(
            f"Round {self.round}: {self.path} cannot be read ({reason[:200]}): it was "
            "cut or altered. Restore it from a copy, or train again."
        )


class StoredTensors(LazyTensors):
    """A message's tensors on disk.

    Raises:
        TranscriptError: One is not in the shard.
    """

    __slots__ = ("nbytes",)

    def __init__(self, shard: Shard, keys: Mapping[str, str]) -> None:
        super().__init__(keys, lambda name: shard.read(keys[name]))
        self.nbytes = sum(map(shard.use, keys.values()))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, in which no name stands twice.

    Raises:
        ValueError: One does: readers differ in which of the two they take.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name stands twice in it")
    return made


def _read_header(path: Path) -> dict[str, _Place]:
    """Return where the tensors are; they fill the file, without gaps or overlaps."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH), "little")
        if not 0 < length <= size - _LENGTH:
            raise ValueError("its header does not fit into it")
        check_limit("text", length, f"The header of {path}")
        content = file.read(length)
    check_json(content, f"The header of {path}")
    header = json.loads(content.decode(), object_pairs_hook=unique)
    if not isinstance(header, dict):
        raise TypeError("its header is no JSON object")
    header.pop("__metadata__", None)
    first = _LENGTH + length
    places = {name: _place(entry, first) for name, entry in header.items()}
    end = first
    for place in sorted(places.values(), key=lambda one: (one.begin, one.nbytes)):
        if place.begin != end:
            raise ValueError("its tensors overlap, or leave gaps")
        end += place.nbytes
    if end != size:
        raise ValueError(f"its tensors end at {end:,} and the file at {size:,} bytes")
    return places


def _place(entry: Mapping[str, Any], first: int) -> _Place:
    begin, end = entry["data_offsets"]
    dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
    numbers = (begin, end, *shape)
    if any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
        raise ValueError("a shape or place in it is no whole number")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("a tensor's shape and bytes differ")
    return _Place(dtype, shape, first + begin, end - begin)


def _read_content(path: Path, place: _Place) -> Tensor:
    """Return a tensor on the CPU, wherever new tensors are made just now."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size < place.begin + place.nbytes:
            raise ValueError("it is shorter than it was")
        content = torch.empty(place.nbytes, dtype=torch.uint8, device="cpu")
        file.seek(place.begin)
        if file.readinto(content.numpy().data) != place.nbytes:
            raise ValueError("it is shorter than it was")
    return content.view(place.dtype).reshape(place.shape)


SERVER = "server"
PUBLIC = "public"  # the receiver of what is given away
GENESIS = "0" * 64

Kind = Literal[
    "broadcast", "update", "individual-update", "release", "query", "sum", "rule",
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


@dataclass(frozen=True, slots=True)
class Message:
    """Tensors that passed from one party to another in one round.

    Attributes:
        round: Counted from 0; the last broadcast and the releases come after the last
            round and bear its successor's number.
        sender: ``SERVER`` or a client's name.
        receiver: ``SERVER``, a client's name, or ``PUBLIC``.
        kind: What it is. "sum" is what a server learns of clients' updates: nobody
            sends it, and it stands in a transcript only where uploads were masked.
            "rule" is what the receiver would have got by the trainer's rule, where an
            active server sent something else: nobody sends that either.
        tensors: By name, as the receiver gets them: after clipping, noise, compression.
            Of a stored transcript each is read from the disk whenever it is asked for.
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

    def describe(self) -> dict[str, Any]:
        """Return the message with a digest in place of each tensor."""
        return {
            "round": self.round,
            "sender": self.sender,
            "receiver": self.receiver,
            "kind": self.kind,
            "tensors": {n: digest(t) for n, t in self.tensors.items()},
        }


@dataclass(frozen=True)
class ChainEnd:
    """Where a transcript's hash chain ends, as run.json and bundle.json note it.

    Attributes:
        head: The hash of the last line, and so of all.
    """

    head: str = GENESIS
    length: int = 0

    def after(self, entry: Mapping[str, Any]) -> "ChainEnd":
        """Return the end behind one line more, which is given without its hash."""
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        hashed = hashlib.sha256((self.head + text).encode()).hexdigest()
        return ChainEnd(hashed, self.length + 1)


class Transcript(Sequence[Message]):
    """Every message of one run, in the order in which they were sent."""

    def __init__(
        self,
        messages: Iterable[Message] = (),
        end: ChainEnd = ChainEnd(),  # it is frozen
        shards: Iterable[Shard] = (),
    ) -> None:
        self._messages = tuple(messages)
        self.end, self.shards = end, tuple(shards)

    @property
    def head(self) -> str:
        """The hash of all lines."""
        return self.end.head

    def check(self) -> "Transcript":
        """Read every tensor once, none of which is kept, and return the transcript.

        Raises:
            TranscriptError: One was cut or altered; the text says which file and round.
        """
        for shard in self.shards:
            shard.check()
        return self

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)


def size(message: Message) -> int:
    """Return a message's payload in bytes; nothing of a stored one is read."""
    if isinstance(message.tensors, StoredTensors):
        return message.tensors.nbytes
    return sum(t.numel() * t.element_size() for t in message.tensors.values())


def bytes_sent(messages: Iterable[Message]) -> dict[str, int]:
    """Return the payload that went up to the server, or away, and down from it.

    Of a masked sum, all that its protocol sends; the sum itself is made by the server,
    and what a rule would have sent is not sent.
    """
    totals = {"up": 0, "down": 0}
    for message in messages:
        if message.kind not in ("sum", "rule"):
            totals["down" if message.sender == SERVER else "up"] += size(message)
    return totals


_COMMON = ("round", "sender", "kind")  # what the messages of a line share, and tensors
_SHARD = re.compile(r"round-\d{4,}\.safetensors")


def shard_name(round: int) -> str:
    """Return the file of a round's tensors."""
    return f"round-{round:04d}.safetensors"


class RoundTensors:
    """The tensors of one round: each is digested and stored once."""

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
            ValueError: Nothing of such a kind is ever sent.
        """
        line = cls(*(entry[field] for field in cls._fields))
        texts = (line.sender, line.kind, *line.receivers, *line.tensors.values())
        if type(line.round) is not int or not all(type(text) is str for text in texts):
            raise TypeError("a field is of another type")
        if type(line.receivers) is not list or not line.receivers:
            raise TypeError("it has no list of receivers")
        if line.kind not in get_args(Kind):
            raise ValueError(f"this version knows no kind {line.kind[:40]!r}")
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
                f"{place} is not a message ({error!r}): it was cut or altered, or "
                "another version wrote it. Restore it from a copy."
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
