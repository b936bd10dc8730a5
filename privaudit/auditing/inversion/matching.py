"""Gradient matching: records whose training would have sent what was sent.

Where an upload is of few records, its numbers outnumber theirs. Dummy records are moved
until a client that trains on them, with all its local steps, sends the same.

Source: Zhu, Liu and Han, "Deep leakage from gradients", NeurIPS 2019; Geiping et al.,
"Inverting gradients", NeurIPS 2020; on prompts, arXiv 2403.07901. They descend along
the gradient of a distance of gradients; here are Levenberg-Marquardt steps on the L2 distance,
with derivatives by finite differences of the replayed training, so that any trainer's
local steps can be replayed as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.auditing.attack import Adversary
from privaudit.auditing.inversion.uploads import SeenUpload
from privaudit.federated.trainer import Records

STEPS, STALLED = 12, 0.99
"""Of each guess: steps, and the part of the distance left after one that ends them."""
MORE_STEPS, MORE_STALLED = 100, 0.9999
"""Of the best guess: where a record is far from public ones the way is long."""
DAMPING = tuple(10.0**-power for power in range(6))
"""Of steps that are tried together, relative to the largest singular value."""
NUDGE = 1e-2  # float32 tells what it does to an upload; features are of unit length
MATCHED = 1e-3  # relative distance at which uploads are the same


@dataclass(frozen=True)
class MatchedBatch:
    """Dummy records, and how close what they would send is to what was sent.

    Attributes:
        features: Of unit length.
        distance: Of the uploads, relative to the real one; 0 is a match.
    """

    features: Float[Tensor, "records dim"]
    labels: Int[Tensor, " records"]
    distance: float


def match(
    adversary: Adversary,
    seen: SeenUpload,
    batches: Sequence[Records],
    axes: Float[Tensor, "axes dim"],
) -> MatchedBatch:
    """Return the best of some batches, after their features were matched to an upload.

    Args:
        adversary: Who matches.
        seen: The upload, of as many records as each batch has.
        batches: Where matching begins, the best guess first: labels, with features.
        axes: Directions that features are moved along, orthogonal, of unit length.
    """
    found: list[MatchedBatch] = []
    for batch in batches:
        found.append(_match(adversary, seen, batch, axes, STEPS, STALLED))
        if found[-1].distance <= MATCHED:
            return found[-1]
    best = min(found, key=lambda matched: matched.distance)
    start = Records(best.features, best.labels)
    return _match(adversary, seen, start, axes, MORE_STEPS, MORE_STALLED)


def _match(
    adversary: Adversary,
    seen: SeenUpload,
    batch: Records,
    axes: Float[Tensor, "axes dim"],
    steps: int,
    stalled: float,
) -> MatchedBatch:
    goal, size = seen.delta, len(batch)

    def sent(dummies: Float[Tensor, "guesses records dim"]) -> Tensor:
        shards = [Records(normalize(d, dim=1).float(), batch.labels) for d in dummies]
        return seen.replay(adversary, ["dummy"] * len(shards), shards)

    dummies = batch.features.double()
    missing = goal - sent(dummies[None])[0]
    single = torch.eye(size, dtype=axes.dtype)
    nudges = torch.einsum("rs,ad->rasd", single, axes).flatten(0, 1)
    for _ in range(steps):
        if missing.norm() <= MATCHED * goal.norm():
            break
        slopes = (sent(dummies + NUDGE * nudges) - (goal - missing)) / NUDGE
        tried = torch.einsum("tn,nsd->tsd", _steps(slopes, missing), nudges)
        left = goal - sent(dummies + tried)
        best = int(left.norm(dim=1).argmin())
        if left[best].norm() > stalled * missing.norm():
            break
        dummies, missing = normalize(dummies + tried[best], dim=1), left[best]
    distance = float(missing.norm() / goal.norm().clamp(min=1e-30))
    return MatchedBatch(normalize(dummies, dim=1).float(), batch.labels, distance)


def _steps(
    slopes: Float[Tensor, "inputs numbers"], missing: Float[Tensor, " numbers"]
) -> Float[Tensor, "steps inputs"]:
    """Return damped least-squares steps, from short ones to the full one."""
    left, values, right = torch.linalg.svd(slopes, full_matrices=False)
    along = right @ missing
    damping = torch.tensor(DAMPING, dtype=slopes.dtype)[:, None] * values.max()
    gains = values / (values**2 + damping**2).clamp(min=1e-300)
    return (gains * along) @ left.T
