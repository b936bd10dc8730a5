"""Sums of what clients sent in a round, made when a view is asked for them."""

from collections.abc import Sequence

from torch import Tensor

from privaudit.core.errors import ViewError
from privaudit.core.tensors import Tensors
from privaudit.federated.transcripts.lazy_tensors import LazyTensors
from privaudit.federated.transcripts.transcript import SERVER, Message
from privaudit.privacy.secure_aggregation.ideal_sum import exact_sum, secure_sum

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
