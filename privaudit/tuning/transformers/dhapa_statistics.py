"""DHAPA at the client: what is measured about its records, and held out to measure."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch, in_parts, pick_batch
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.models.interfaces import Tuning
from privaudit.tuning.transformers.objectives import objective_of

ROWS_AT_ONCE = 64  # records of each client


def held_out(cohort: Cohort, at: Round, share: float) -> Bool[Tensor, "clients n"]:
    """Say which records each client validates on, the same ones in every round.

    At least one, and at least one is left to train on; none where a client has fewer
    than two, or the share is 0.
    """
    chosen = torch.zeros_like(cohort.mask)
    for row, (client, size) in enumerate(
        zip(cohort.clients, cohort.sizes.tolist(), strict=True)
    ):
        if size < 2 or share == 0:
            continue
        count = min(size - 1, max(1, round(share * size)))
        order = at.seeds.stream("validation", client=client).permutation(size)
        chosen[row, order[:count]] = True
    return chosen


def part_of(cohort: Cohort, chosen: Bool[Tensor, "clients n"]) -> Batch:
    """Return some records of each client, in their order, padded anew."""
    places = _places(chosen)
    return pick_batch(cohort, places, chosen.gather(1, places))


def _places(chosen: Bool[Tensor, "clients n"]) -> Int[Tensor, "clients some"]:
    """Return where the chosen ones are, and others behind them where they are fewer."""
    order = chosen.long().argsort(dim=1, descending=True, stable=True)
    return order[:, : max(1, int(chosen.sum(dim=1).max()))]


def as_cohort(cohort: Cohort, chosen: Bool[Tensor, "clients n"]) -> Cohort:
    """Return the same clients with those records alone."""
    batch, views = part_of(cohort, chosen), cohort.views
    if views is not None:
        rows = torch.arange(len(cohort)).unsqueeze(1)
        views = views[rows, _places(chosen)]
    return Cohort(
        cohort.clients,
        batch.features,
        batch.labels,
        batch.mask,
        batch.tokens,
        batch.words,
        batch.crafted,
        views,
    )


def as_batch(records: Records, count: int) -> Batch:
    """Return records as the batch of each of so many models."""
    whole = Cohort.of([""] * count, [records] * count)
    return part_of(whole, whole.mask)


@torch.no_grad()
def entropies(task: Task, tuning: Tuning, batch: Batch) -> Float[Tensor, "clients n"]:
    """Return the entropy of each client's model on each of its records, in nats.

    Of the classes; of a model that writes, the mean over the answer's tokens. In [0,
    log of the number of classes, or of the vocabulary].
    """
    measure = objective_of(task).entropies
    parts = [measure(tuning, part) for part in in_parts(batch, ROWS_AT_ONCE)]
    return torch.cat(parts, dim=1)


def embeddings(batch: Batch, *, within: float | None) -> Float[Tensor, "clients n d"]:
    """Return f(x), the frozen model's feature of each record.

    Features longer than ``within`` are shortened to that; None leaves them.
    """
    if within is None:
        return batch.features
    norms = batch.features.norm(dim=2, keepdim=True)
    return batch.features * (within / norms.clamp(min=within))


def total(
    contributions: Stacked, mask: Bool[Tensor, "clients n"]
) -> dict[str, Float[Tensor, "clients width"]]:
    """Return the sums over each client's records."""
    return {
        name: (contribution * mask.unsqueeze(2)).sum(dim=1)
        for name, contribution in contributions.items()
    }
