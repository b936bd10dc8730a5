"""The messages of a view: found without a search, and summed when a sum is asked for."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from torch import Tensor

from privaudit.core.errors import ViewError
from privaudit.core.tensors import LazyTensors, Tensors
from privaudit.federated.transcripts.transcript import SERVER, Kind, Message
from privaudit.privacy.secure_aggregation.ideal_sum import exact_sum, secure_sum

K = TypeVar("K")


class MessageIndex(Sequence[Message]):
    """Messages in their order; each index over them is made once, when it is needed."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = tuple(messages)

    def of_client(self, client: str) -> Sequence[Message]:
        """Return what a party sent or received, in order."""
        return self._by_party.get(client, ())

    def of_kind(self, kind: Kind) -> Sequence[Message]:
        """Return all messages of a kind, in order."""
        return self._by_kind.get(kind, ())

    def of_round(self, round: int) -> Sequence[Message]:
        """Return all messages of a round, in order."""
        return self._by_round.get(round, ())

    @property
    def kinds(self) -> Iterable[Kind]:
        """The kinds that there are."""
        return self._by_kind

    @property
    def rounds(self) -> list[int]:
        """The rounds in which anything was sent, in order of first sight."""
        return list(self._by_round)

    def with_uploads(self, client: str, uploads: Sequence[Message]) -> "MessageIndex":
        """Return the messages with others in place of all that a client sent."""
        return _Exchanged(self, client, uploads)

    @cached_property
    def _by_party(self) -> Mapping[str, Sequence[Message]]:
        found: dict[str, list[Message]] = defaultdict(list)
        for message in self._messages:
            for party in {message.sender, message.receiver}:
                found[party].append(message)
        return found

    @cached_property
    def _by_kind(self) -> Mapping[Kind, Sequence[Message]]:
        return _grouped(self._messages, lambda m: m.kind)

    @cached_property
    def _by_round(self) -> Mapping[int, Sequence[Message]]:
        return _grouped(self._messages, lambda m: m.round)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]


class _Exchanged(MessageIndex):
    """Messages with others in place of a client's, behind the rest, found as fast."""

    def __init__(
        self, base: MessageIndex, client: str, uploads: Sequence[Message]
    ) -> None:
        self._base, self._client, self._uploads = base, client, tuple(uploads)

    @cached_property
    def _messages(self) -> tuple[Message, ...]:  # type: ignore[override]
        return tuple(self._exchanged(self._base, lambda _: True))

    def of_client(self, client: str) -> Sequence[Message]:
        found = self._base.of_client(client)
        return self._exchanged(found, lambda m: client in (m.sender, m.receiver))

    def of_kind(self, kind: Kind) -> Sequence[Message]:
        return self._exchanged(self._base.of_kind(kind), lambda m: m.kind == kind)

    def of_round(self, round: int) -> Sequence[Message]:
        return self._exchanged(self._base.of_round(round), lambda m: m.round == round)

    @property
    def kinds(self) -> Iterable[Kind]:
        found = chain(self._base.kinds, (m.kind for m in self._uploads))
        return [kind for kind in dict.fromkeys(found) if self.of_kind(kind)]

    @property
    def rounds(self) -> list[int]:
        found = chain(self._base.rounds, (m.round for m in self._uploads))
        return list(dict.fromkeys(found))

    def _exchanged(
        self, found: Iterable[Message], fits: Callable[[Message], bool]
    ) -> list[Message]:
        others = [m for m in found if m.sender != self._client]
        return others + [m for m in self._uploads if fits(m)]


def _grouped(
    messages: Iterable[Message], key: Callable[[Message], K]
) -> dict[K, list[Message]]:
    found: dict[K, list[Message]] = defaultdict(list)
    for message in messages:
        found[key(message)].append(message)
    return found


EVERYBODY = "clients"  # the party that stands for all: no client has that name
KEPT_SUMS = 2  # rounds whose sums a view holds: the others are summed again


class OthersSums:
    """What all but one client sent in each round, summed once for all its shadows.

    Float64 sums of a round are small beside the shadows' own uploads of it.
    """

    def __init__(self, client: str) -> None:
        self.client = client
        self._kept: dict[int, Tensors] = {}

    def sum(self, round: int, sent: Sequence[Message]) -> Tensors:
        """Return a round's sum, in which the client's messages are the last."""
        others = [m.tensors for m in sent if m.sender != self.client]
        own = [m.tensors for m in sent if m.sender == self.client]
        if not others or not own:
            return secure_sum(others or own)
        if round not in self._kept:
            self._kept[round] = exact_sum(others)
        if self._kept[round].keys() - own[0].keys():
            return secure_sum(others + own)
        return secure_sum(own, self._kept[round])


class Sums:
    """Sums of rounds, made when they are asked for; the last few are kept."""

    def __init__(self, others: OthersSums | None = None) -> None:
        self._others = others
        self._kept: dict[int, Tensors] = {}

    def of(self, round: int, sent: Sequence[Message]) -> Tensors:
        """Return the sum of what was sent in a round."""

        def find(name: str) -> Tensor:
            total = self._kept.pop(round, None)
            self._kept[round] = self._sum(round, sent) if total is None else total
            while len(self._kept) > KEPT_SUMS:
                del self._kept[next(iter(self._kept))]
            return self._kept[round][name]

        return LazyTensors((name for message in sent for name in message.tensors), find)

    def _sum(self, round: int, sent: Sequence[Message]) -> Tensors:
        if self._others is not None:
            return self._others.sum(round, sent)
        return secure_sum([message.tensors for message in sent])


def sum_of(updates: list[Message], sums: Sums) -> list[Message]:
    """Return the message that stands for a round's uploads; none where there are none.

    Raises:
        ViewError: No secure sum could hide an upload.
    """
    if not updates:
        return []
    alone = [m.sender for m in updates if m.kind == "individual-update"]
    if alone:
        raise ViewError(
            f"This trainer uses the update of {alone[0]!r} by itself, so no secure sum "
            "could hide it. Use the threat model 'server': --scenario "
            "server-reconstruct."
        )
    if len(updates) == 1:
        raise ViewError(
            f"In round {updates[0].round} {updates[0].sender!r} took part alone: a sum "
            "over one client is its upload. Use the threat model 'server', or let "
            "more clients take part."
        )
    total = sums.of(updates[0].round, updates)
    return [Message(updates[0].round, EVERYBODY, SERVER, "sum", total)]
