"""The transcript: every message of a federated run.

Besides a run's ledger and private states, which no adversary reaches, the transcript is
all a trainer leaves behind: whatever is not in it did not leak. It only grows, and each
line of it carries the hash of all before, so that a changed or cut record is noticed.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privaudit.core.tensors import Tensors, digest
from privaudit.federated.transcripts.shards import Shard, StoredTensors

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
        receiver: Likewise, or ``PUBLIC``.
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
        length: How many lines there are.
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
