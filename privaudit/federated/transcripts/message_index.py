"""The messages of a view, found by client, kind and round without a search."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from privaudit.federated.transcripts.transcript import Kind, Message

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
