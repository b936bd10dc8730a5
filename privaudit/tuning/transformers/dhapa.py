"""DHAPA: what clients measure about their records, and how the server weighs and groups them.

Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
foundation models", section 2.3.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Batch, in_parts, pick_batch
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.models.interfaces import Tuning
from privaudit.tuning.transformers.objectives import objective_of

ROUNDING = 1e-6  # relative: what is sent in float32 is no more exact


def normalized(values: Float[Tensor, " clients"]) -> Float[Tensor, " clients"]:
    """Return values scaled to [0, 1]; 0 where all are equal, up to rounding.

    Example:
        >>> normalized(torch.tensor([2.0, 3.0, 6.0]))
        tensor([0.0000, 0.2500, 1.0000])
        >>> normalized(torch.tensor([5.0, 5.0]))
        tensor([0., 0.])
    """
    spread = values.max() - values.min()
    if spread <= ROUNDING * values.abs().max():
        return torch.zeros_like(values)
    return (values - values.min()) / spread


def gaps_to_mean(embeddings: Float[Tensor, "clients dim"]) -> Float[Tensor, " clients"]:
    """Return how far each client's mean embedding is from the mean of all of them."""
    return (embeddings - embeddings.mean(dim=0)).norm(dim=1)


def client_weights(
    uncertainty: Float[Tensor, " clients"],
    gaps: Float[Tensor, " clients"],
    improvement: Float[Tensor, " clients"],
    *,
    alpha: float,
    beta: float,
    gamma: float,
) -> Float[Tensor, " clients"]:
    """Return w = alpha softmax(u) + beta (1 - norm(g)) + gamma norm(dp), summing to 1.

    The softmax shares out 1 between all clients, the other terms give up to 1 to each:
    with equal factors and many clients the uncertainty counts little. Where all weights
    are zero, all clients count alike.

    ``uncertainty`` is u, in nats, ``gaps`` is g, both at least 0, as the three factors
    are; ``improvement`` is dp, of any sign.

    Example:
        >>> u, g, dp = torch.zeros(2), torch.tensor([1.0, 3.0]), torch.zeros(2)
        >>> client_weights(u, g, dp, alpha=1.0, beta=1.0, gamma=0.0)
        tensor([0.7500, 0.2500])
    """
    weights = (
        alpha * uncertainty.softmax(dim=0)
        + beta * (1 - normalized(gaps))
        + gamma * normalized(improvement)
    )
    total = weights.sum()
    if not total > 0:
        return torch.full_like(weights, 1 / len(weights))
    return weights / total


def shares_in_groups(
    weights: Float[Tensor, " clients"], groups: Int[Tensor, " clients"], count: int
) -> Float[Tensor, "groups clients"]:
    """Return what part each client has in each group's mean.

    Rows sum to 1; a row is zero where nobody is in the group, and equal among its
    clients where none of them has a weight.
    """
    belongs = groups == torch.arange(count, device=groups.device).unsqueeze(1)
    shares = weights * belongs
    total = shares.sum(dim=1, keepdim=True)
    alike = belongs / belongs.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(total > 0, shares / total, alike.to(weights.dtype))


def find_centres(
    embeddings: Float[Tensor, "clients dim"],
    count: int,
    before: Float[Tensor, "count dim"] | None,
    seed: int,
) -> Float[Tensor, "count dim"] | None:
    """Return the centres of k-means; those from before where there are too few points.

    It begins at the centres from before, so that a cluster keeps its number.

    ``before`` is None where none were found yet, and comes back with fewer distinct
    embeddings than clusters; ``seed`` is of k-means++, where no centres are known.
    """
    from sklearn.cluster import KMeans

    points = embeddings.double().cpu().numpy()
    if len(np.unique(points, axis=0)) < count:
        return before
    if before is None:
        kmeans = KMeans(count, n_init=10, random_state=seed).fit(points)
    else:
        start = before.double().cpu().numpy()
        kmeans = KMeans(count, init=start, n_init=1, random_state=seed).fit(points)
    return torch.from_numpy(kmeans.cluster_centers_).to(embeddings)


def nearest_centre(
    embeddings: Float[Tensor, "clients dim"], centres: Float[Tensor, "count dim"]
) -> Int[Tensor, " clients"]:
    """Return each client's nearest centre; the first of those equally near."""
    gaps = (embeddings.unsqueeze(1) - centres).norm(dim=2)
    return first_best(-gaps.T)


def first_best(scores: Float[Tensor, "choices clients"]) -> Int[Tensor, " clients"]:
    """Return which choice has the highest score; the first of equal ones.

    Example:
        >>> first_best(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
        tensor([0, 1])
    """
    best: Bool[Tensor, "choices clients"] = scores == scores.max(dim=0).values
    order = torch.arange(len(scores), 0, -1, device=scores.device).unsqueeze(1)
    return (best * order).argmax(dim=0)


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
    return Cohort(cohort.clients, **vars(batch), views=views)


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
