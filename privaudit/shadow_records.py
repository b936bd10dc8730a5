"""Which public records an adversary's shadow clients train on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.attack import Adversary, Target
from privaudit.trainer import ClientId, PublicTask, Records

NOBODY = -1  # owns what is out of a whole shadow federation


def _wanted_share(adversary: Adversary, target: Target) -> Float[Tensor, " public"]:
    """Return how likely a shadow of the target is trained on each public record.

    Half of the candidates are members, so of each class about half their number is
    drawn, but never more than half of the public records of that class.
    """
    public, wanted = adversary.task.public, target.candidates.labels
    classes = int(max(public.labels.max(), wanted.max())) + 1
    asked = torch.bincount(wanted, minlength=classes) / 2
    there = torch.bincount(public.labels, minlength=classes).clamp(min=1)
    return (asked / there).clamp(max=0.5)[public.labels]


@dataclass(frozen=True)
class Pool:
    """Public records of a target's classes, and which shadow trains on which."""

    records: Records
    is_in: Tensor
    is_out: Tensor

    @classmethod
    def draw(cls, adversary: Adversary, target: Target, shadows: int) -> "Pool":
        """Toss coins so that a shadow is as large as the target probably is."""
        share = _wanted_share(adversary, target)
        pool = adversary.task.public.pick(share > 0)
        generator = adversary.seeds.generator("shadow-coin", client=target.client)
        is_in = torch.rand(shadows, len(pool), generator=generator) < share[share > 0]
        return cls(pool, is_in, ~is_in)

    def shard(self, shadow: int) -> Records:
        """Return what one shadow trains on."""
        return self.records.pick(self.is_in[shadow])


@dataclass(frozen=True)
class Dealt:
    """Public records dealt to the clients of each shadow federation, or to nobody.

    A record has one owner at the most, so that what is out of the target is out of the
    whole federation, as the target's non-members are out of the real one.
    """

    task: PublicTask
    owner: Tensor

    @classmethod
    def draw(
        cls, adversary: Adversary, targets: Sequence[Target], shadows: int
    ) -> "Dealt":
        """Deal as the targets' classes ask; bystanders get any class alike."""
        task, count = adversary.task, len(adversary.task.public)
        asked = {target.client: _wanted_share(adversary, target) for target in targets}
        shares = torch.stack(
            [
                asked.get(client, torch.full((count,), candidates / 2 / count))
                for client, candidates in task.candidates.items()
            ]
        )
        shares = shares / (shares.sum(dim=0) / 0.5).clamp(min=1)  # half stays out
        generator = adversary.seeds.generator("shadow deal")
        draw = torch.rand(shadows, count, generator=generator)
        owner = torch.searchsorted(
            shares.cumsum(dim=0).T.contiguous(), draw.T.contiguous(), right=True
        ).T
        return cls(task, torch.where(owner < len(shares), owner, NOBODY))

    def pool_of(self, client: ClientId) -> Pool:
        """Return the records of classes that a client's shadows hold, and which."""
        is_in = self.owner == self._place(client)
        classes = self.task.public.labels[is_in.any(dim=0)].unique()
        used = torch.isin(self.task.public.labels, classes)
        return Pool(
            self.task.public.pick(used),
            is_in[:, used],
            (self.owner == NOBODY)[:, used],
        )

    def shards(self, shadow: int) -> dict[ClientId, Records]:
        """Return what each client of one shadow federation trains on."""
        return {
            client: self.task.public.pick(self.owner[shadow] == number)
            for number, client in enumerate(self.task.clients)
        }

    def candidates(self, shadow: int, client: ClientId) -> Records:
        """Return a shadow's candidates, as a real client has them.

        Its members, and of each class as many records that nobody has, if there are.
        """
        labels, is_in = (
            self.task.public.labels,
            self.owner[shadow] == self._place(client),
        )
        chosen = is_in.clone()
        for label, count in zip(*labels[is_in].unique(return_counts=True), strict=True):
            free = (self.owner[shadow] == NOBODY) & (labels == label)
            chosen[free.nonzero().flatten()[: int(count)]] = True
        return self.task.public.pick(chosen)

    def _place(self, client: ClientId) -> int:
        return self.task.clients.index(client)
