"""Threat models: what one adversary sees of a transcript.

An attack gets a :class:`View` and nothing else, so it cannot use what its adversary
could not have seen. A view is a *function* of the transcript: it may hold derived
messages, such as the sums that a secure aggregation reveals.

=================  ============================================================
server             every message the server sends or receives
server-aggregate   what the server sends, and per round the sum of the updates:
                   a function of the server's view
peer               what one client receives
released           the personal models that clients give away
=================  ============================================================

Where a run's uploads were masked (:mod:`privaudit.federation.masked_sum`), the
server's view holds the protocol's messages and the sums that came of them, and no
update; `server-aggregate` keeps the sums, and who is in them.

The peer's view is a function of the server's too (the server sent it). What is released
is not: no other view holds a client's private part, and nobody who buys a prompt saw
the rounds. So `server` and `released` cannot be ordered.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from privaudit.core.errors import UnknownNameError, ViewError
from privaudit.core.lazy_torch import Tensor
from privaudit.core.tensors import LazyTensors, Tensors, distinct
from privaudit.federation.transcript import MASKED_KINDS, PUBLIC, SERVER, Kind, Message
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


@dataclass(frozen=True, slots=True)
class SumOfUpdates(Message):
    """What stands for a round's uploads in a view: their sum, and how many there are.

    A server that sees the sum alone knows the number too, as it divides by it.
    """

    parties: int


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
    index, parties = updates[0].round, len(updates)
    total = sums.of(index, updates)
    return [SumOfUpdates(index, EVERYBODY, SERVER, "sum", total, parties)]


SECRETS = MASKED_KINDS - {"survivors"}  # what only a whole server sees of a masked sum
T = TypeVar("T")
ViewName = Literal["server", "server-aggregate", "peer", "released"]


@dataclass(frozen=True)
class RoundSum:
    """One round as a server knows it that needs sums only.

    Attributes:
        index: Number of the round, from 0.
        parties: How many clients are in the sum: those whose upload arrived. Of a
            recorded sum without a list of survivors, those who got the broadcast.
        broadcast: What one of them received; all did, where uploads are summed.
        total: The sum of what they sent; made when it is asked for.
    """

    index: int
    parties: int
    broadcast: Tensors
    total: Tensors

    def mean(self, name: str) -> Tensor:
        """Return the plain mean over those in the sum."""
        return self.total[name] / self.parties


@dataclass(frozen=True)
class View:
    """The messages one adversary sees; a ViewError where it does not see any."""

    adversary: ViewName
    messages: Sequence[Message]
    _others: "OthersSums | None" = field(default=None, repr=False, compare=False)

    def updates_of(self, client: str) -> tuple[Message, ...]:
        """Return what ``client`` sent to the server, round by round.

        Raises:
            ViewError: This adversary sees none of the client's messages.
        """
        updates = tuple(self._updates_of(client))
        if not updates and self.is_masked:
            raise ViewError(
                f"The uploads of this run are masked, so nobody sees an update of "
                f"{client!r}, only sums. Attack the global model: --scenario "
                "server-aggregate."
            )
        if not updates:
            raise ViewError(
                f"The {self.adversary} view holds no update of {client!r}. Attack the "
                "global model, or use a stronger threat model."
            )
        return updates

    def broadcasts_to(self, client: str) -> tuple[Message, ...]:
        """Return what the server sent to ``client``, round by round.

        Raises:
            ViewError: This adversary does not see it.
        """
        sent = tuple(self._broadcasts_to(client))
        if not sent:
            raise ViewError(
                f"The {self.adversary} view holds nothing that was sent to {client!r}. "
                "Use a threat model that sees broadcasts."
            )
        return sent

    def received_in(self, client: str, round: int) -> Message:
        """Return what ``client`` trained from in a round: the last sent to it by then.

        An upload may come rounds after the broadcast that it answers.

        Raises:
            ViewError: This adversary sees no broadcast to it of that round or before.
        """
        sent = [m for m in self.broadcasts_to(client) if m.round <= round]
        if not sent:
            raise ViewError(
                f"The {self.adversary} view holds an upload of {client!r} in round "
                f"{round}, and nothing that was sent to it by then. Record broadcasts "
                "before what answers them, or make attacks that read models alone."
            )
        return sent[-1]

    def in_round(self, round: int) -> Sequence[Message]:
        """Return what was sent in a round."""
        return self._index.of_round(round)

    def of_kind(self, kind: Kind) -> Sequence[Message]:
        """Return all that is of one kind, in order."""
        return self._index.of_kind(kind)

    def with_uploads(self, client: str, uploads: Sequence[Message]) -> "View":
        """Return the view as it were, had ``client`` sent these and nothing else."""
        others = self._made.get(OthersSums)
        if others is None or others.client != client:  # one client's at a time
            others = self._made[OthersSums] = OthersSums(client)
        return View(self.adversary, self._index.with_uploads(client, uploads), others)

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return what is made of the whole view, for all clients the same: made once.

        ``what`` tells it from all else that is made of a view, by any trainer.
        """
        if what not in self._made:
            self._made[what] = make()
        return self._made[what]

    @cached_property
    def sums(self) -> tuple["RoundSum", ...]:
        """What clients sent in each round, summed, beside what they received.

        Empty where the view holds neither uploads nor their sums.
        """
        found = map(self._sum_of, self._index.rounds)
        return tuple(one for one in found if one is not None)

    @property
    def last_sum(self) -> "RoundSum | None":
        """The last of :attr:`sums`; None where there is none."""
        found = map(self._sum_of, reversed(self._index.rounds))
        return next((one for one in found if one is not None), None)

    @property
    def is_masked(self) -> bool:
        """Whether it holds messages of a masked sum: then no update stands in it."""
        return not MASKED_KINDS.isdisjoint(self._index.kinds)

    def moves_of(self, client: str, name: str) -> tuple[Tensor, ...]:
        """Return each upload of a tensor less what the client had received of it.

        Raises:
            ViewError: This adversary sees none of the client's messages.
        """
        return tuple(
            m.tensors[name] - self.received_in(client, m.round).tensors[name]
            for m in self.updates_of(client)
        )

    def parties_of(self, client: str) -> tuple[int, ...]:
        """Return how many uploads arrived in the round of each of the client's, itself in.

        Raises:
            ViewError: This adversary sees none of the client's messages.
        """
        rounds = (self.in_round(one.round) for one in self.updates_of(client))
        return tuple(sum(m.is_update for m in sent) for sent in rounds)

    def last_broadcast(self, client: str) -> Message:
        """Return the last thing the server sent to ``client``, or else to anybody.

        A peer does not see what others receive, but knows that it is the same.

        Raises:
            ViewError: This adversary sees no broadcast at all.
        """
        sent = self._broadcasts_to(client) or self._index.of_kind("broadcast")
        return (sent or self.broadcasts_to(client))[-1]

    def release_of(self, client: str) -> Message:
        """Return the personal model that ``client`` gave away.

        Raises:
            ViewError: This adversary does not have it.
        """
        given = self._releases_of(client)
        if not given:
            raise ViewError(
                f"The {self.adversary} view holds no released model of {client!r}."
            )
        return given[0]

    def sees_updates_of(self, client: str) -> bool:
        """Say whether single uploads of ``client`` are in the view."""
        return bool(self._updates_of(client))

    def has_release_of(self, client: str) -> bool:
        """Say whether the personal model of ``client`` is in the view."""
        return bool(self._releases_of(client))

    @cached_property
    def _index(self) -> MessageIndex:
        if isinstance(self.messages, MessageIndex):
            return self.messages
        return MessageIndex(self.messages)

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}

    def _updates_of(self, client: str) -> list[Message]:
        sent = self._index.of_client(client)
        return [m for m in sent if m.sender == client and m.is_update]

    def _broadcasts_to(self, client: str) -> list[Message]:
        sent = self._index.of_client(client)
        return [m for m in sent if m.receiver == client and m.kind == "broadcast"]

    def _releases_of(self, client: str) -> list[Message]:
        sent = self._index.of_client(client)
        return [m for m in sent if m.sender == client and m.kind == "release"]

    def _sum_of(self, round: int) -> RoundSum | None:
        group = self.in_round(round)
        summed = [m for m in group if m.kind == "sum"]  # in it are those of a recording
        sent = summed or [m for m in group if m.kind == "update"]
        down = [m.tensors for m in group if m.kind == "broadcast"]
        if not (sent and down):
            return None
        masked = [m.tensors["clients"] for m in group if m.kind == "survivors"]
        parties = masked[0].numel() if masked else 0
        if isinstance(sent[0], SumOfUpdates):
            parties = sent[0].parties
        elif not summed:
            parties = len(sent)
        return RoundSum(
            round, parties or len(down), down[0], self._sums.of(round, sent)
        )

    @cached_property
    def _sums(self) -> "Sums":
        return Sums(self._others)


@runtime_checkable
class ThreatModel(Protocol):
    """Anything that derives an adversary's view from the messages of a run."""

    def __call__(self, messages: Iterable[Message]) -> View:
        """Return what the adversary sees."""


def server(messages: Iterable[Message]) -> View:
    """An honest-but-curious server: all that it receives or sends."""
    seen = tuple(m for m in messages if SERVER in (m.sender, m.receiver))
    return View("server", seen)


def server_aggregate(messages: Iterable[Message]) -> View:
    """A server behind secure aggregation: its broadcasts, and one sum per round.

    Raises:
        ViewError: The updates are used one by one, so no secure sum could hide them.
    """
    seen: list[Message] = []
    index, sums = MessageIndex(server(messages).messages), Sums()
    for group in map(index.of_round, index.rounds):
        seen.extend(m for m in group if m.sender == SERVER and m.kind not in SECRETS)
        sent = [m for m in group if m.receiver == SERVER and m.kind not in MASKED_KINDS]
        masked = [m for m in sent if m.kind == "sum"]
        seen.extend(masked or sum_of(sent, sums))
    return View("server-aggregate", tuple(seen))


def peer(client: str) -> ThreatModel:
    """One client: what reaches it, and nothing of the others' uploads."""

    def look(messages: Iterable[Message]) -> View:
        received = (m for m in messages if m.receiver == client)
        return View("peer", tuple(m for m in received if m.kind != "rule"))

    return look


def released(messages: Iterable[Message]) -> View:
    """Somebody who was given the personal models, and saw no round."""
    return View("released", tuple(m for m in messages if m.kind == "release"))


def without_names(view: View) -> View:
    """Return the models that were released, each once and as if all had released it."""
    given = view.of_kind("release")
    positions, _ = distinct([m.tensors for m in given])
    return View(
        view.adversary,
        tuple(
            Message(given[n].round, EVERYBODY, PUBLIC, "release", given[n].tensors)
            for n in positions
        ),
    )


THREATS: dict[str, Callable[..., View]] = {
    "server": server,
    "server-aggregate": server_aggregate,
    "released": released,
}


def find_threat(name: str) -> ThreatModel:
    """Return a threat model by name; "peer:client-3" is what that client sees.

    Raises:
        UnknownNameError: There is none.
    """
    if name.startswith("peer:"):
        return peer(name.removeprefix("peer:"))
    if name not in THREATS:
        raise UnknownNameError("threat model", name, [*THREATS, "peer:CLIENT"])
    return THREATS[name]
