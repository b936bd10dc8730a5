"""Which records an adversary's shadow clients train on.

"public": on records that belong to nobody, so that every candidate is out of every
shadow. "candidates": on the target's own candidates, each by a fair coin, as the target
itself was trained: an adversary who asks about a record has it. Every candidate is in
one shadow of a pair and out of the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.core.streams import Stream
from privaudit.federated.trainer import ClientId, Records, Task

Source = Literal["public", "candidates"]

NOBODY = -1  # owns what is out of a whole shadow federation


def _wanted_share(adversary: Adversary, target: Target) -> Float[Tensor, " public"]:
    """Return how likely a shadow of the target is trained on each public record.

    Half of the candidates are members, so of each class about half their number is
    drawn, but never more than half of the public records of that class.
    """
    public, wanted = adversary.task.public, target.candidates.labels
    classes = int(max(public.labels.max(), wanted.max())) + 1
    quota = torch.bincount(wanted, minlength=classes) / 2
    there = torch.bincount(public.labels, minlength=classes).clamp(min=1)
    return (quota / there).clamp(max=0.5)[public.labels]


@dataclass(frozen=True)
class ShadowSplit:
    """What shadows of one target train on.

    Attributes:
        source: Which of both it is.
        records: All that a shadow may be trained on.
        is_in: Which shadow is trained on which of them.
        public_in: The same about every public record.
        public_out: Which public record nobody around a shadow is trained on.
    """

    source: Source
    records: Records
    is_in: Bool[Tensor, "shadows records"]
    public_in: Bool[Tensor, "shadows public"]
    public_out: Bool[Tensor, "shadows public"]

    @classmethod
    def draw(
        cls,
        adversary: Adversary,
        target: Target,
        shadows: int,
        source: Source = "public",
    ) -> "ShadowSplit":
        """Toss coins so that a shadow is as large as the target probably is."""
        public = adversary.task.public
        stream = adversary.seeds.stream("shadow-coin", client=target.client)
        nothing = torch.zeros(shadows, len(public), dtype=torch.bool)
        if source == "candidates":
            is_in = paired_coins(target.candidates, shadows, stream)
            return cls(source, target.candidates, is_in, nothing, ~nothing)
        share = _wanted_share(adversary, target)
        used = share > 0
        drawn = stream.uniform_tensor((shadows, int(used.sum())))
        nothing[:, used] = drawn < share[used]
        return cls(source, public.pick(used), nothing[:, used], nothing, ~nothing)

    def shard(self, shadow: int) -> Records:
        """Return what one shadow trains on.

        Candidates in the order of their contents: batches and sums are then the same
        in whatever order the adversary asks about them.
        """
        return self.records.pick(self._order[self.is_in[shadow, self._order]])

    @cached_property
    def _order(self) -> Int[Tensor, " records"]:
        if self.source == "public":
            return torch.arange(len(self.records))
        return order_of_contents(self.records)


def paired_coins(
    records: Records, shadows: int, stream: Stream
) -> Bool[Tensor, "shadows records"]:
    """Return which shadow is trained on which record: one of each pair of shadows.

    A record's coins follow the record as it came, wherever it stands among the others
    and whatever a processor makes of it; copies of one record share them.
    """
    contents = _contents(records)
    place = {content: number for number, content in enumerate(sorted(set(contents)))}
    pairs = (shadows + 1) // 2
    coins = torch.from_numpy(stream.coins(0.5, (pairs, len(place))))
    is_in = coins[:, [place[content] for content in contents]]
    return torch.stack([is_in, ~is_in], dim=1).flatten(0, 1)[:shadows]


def order_of_contents(records: Records) -> Int[Tensor, " records"]:
    """Return positions in an order that is the same however the records stand."""
    contents = _contents(records)
    return torch.tensor(sorted(range(len(contents)), key=contents.__getitem__))


def _contents(records: Records) -> list[bytes]:
    return [row.tobytes() for row in records.identities.numpy()]


@dataclass(frozen=True)
class FederatedShadowSplit:
    """What the clients of each shadow federation train on.

    A public record has one owner at the most, so that what is out of the target is out
    of the whole federation, as the target's non-members are out of the real one.

    Attributes:
        owner: Of each public record, in each shadow federation.
        splits: The targets' shadows, where these train on candidates.
    """

    task: Task
    owner: Int[Tensor, "shadows public"]
    splits: Mapping[ClientId, ShadowSplit]

    @classmethod
    def draw(
        cls,
        adversary: Adversary,
        targets: Sequence[Target],
        shadows: int,
        source: Source = "public",
    ) -> "FederatedShadowSplit":
        """Split as the targets' classes ask; bystanders get any class alike."""
        task, count = adversary.task, len(adversary.task.public)
        splits: dict[ClientId, ShadowSplit] = {}
        wanted_shares = {
            target.client: _wanted_share(adversary, target) for target in targets
        }
        if source == "candidates":
            splits = {
                target.client: ShadowSplit.draw(adversary, target, shadows, source)
                for target in targets
            }
            wanted_shares = dict.fromkeys(splits, torch.zeros(count))
        shares = torch.stack(
            [
                wanted_shares.get(client, torch.full((count,), candidates / 2 / count))
                for client, candidates in task.candidates.items()
            ]
        )
        shares = shares / (shares.sum(dim=0) / 0.5).clamp(min=1)  # half stays out
        draw = adversary.seeds.stream("shadow deal").uniform_tensor((shadows, count))
        owner = torch.searchsorted(
            shares.cumsum(dim=0).T.contiguous(), draw.T.contiguous(), right=True
        ).T
        return cls(task, torch.where(owner < len(shares), owner, NOBODY), splits)

    def split_of(self, client: ClientId) -> ShadowSplit:
        """Return the records that a client's shadows hold, and which.

        Of public ones, those of classes that they hold.
        """
        is_out = self.owner == NOBODY
        if client in self.splits:
            return replace(self.splits[client], public_out=is_out)
        is_in = self.owner == self._position(client)
        classes = self.task.public.labels[is_in.any(dim=0)].unique()
        used = torch.isin(self.task.public.labels, classes)
        records = self.task.public.pick(used)
        return ShadowSplit("public", records, is_in[:, used], is_in, is_out)

    def shards(self, shadow: int) -> dict[ClientId, Records]:
        """Return what each client of one shadow federation trains on."""
        return {
            client: self.splits[client].shard(shadow)
            if client in self.splits
            else self.task.public.pick(self.owner[shadow] == number)
            for number, client in enumerate(self.task.clients)
        }

    def candidates(self, shadow: int, client: ClientId) -> Records:
        """Return a shadow's candidates, as a real client has them.

        Its members, and of each class as many records that nobody has, if there are.
        """
        if client in self.splits:
            return self.splits[client].records
        labels, is_in = (
            self.task.public.labels,
            self.owner[shadow] == self._position(client),
        )
        chosen = is_in.clone()
        for label, count in zip(*labels[is_in].unique(return_counts=True), strict=True):
            free = (self.owner[shadow] == NOBODY) & (labels == label)
            chosen[free.nonzero().flatten()[: int(count)]] = True
        return self.task.public.pick(chosen)

    def _position(self, client: ClientId) -> int:
        return self.task.clients.index(client)
