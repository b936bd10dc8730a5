"""Labels in closed form: what a classifier's own bias tells of a batch's classes.

The gradient of the mean cross-entropy by the bias of class k is the mean probability of
k less the share of k. A step of SGD moves it by the learning rate times that, so the move is linear
in the shares, with one slope for all classes; several steps add up to nearly that. Slope
and probabilities are those of stand-ins, so momentum and schedules need no formula.

Source: Zhao, Mopuri and Bilen, "iDLG: improved deep leakage from gradients", 2020, for
one record, whose class alone moves up; Yin et al., "See through gradients: image batch
recovery via GradInversion", CVPR 2021, and Wainakh et al., "User-level label leakage
from gradients in federated learning", PoPETs 2022, for batches. They take the weights
of the last layer; a bias needs no features.
"""

import torch
from jaxtyping import Float
from torch import Tensor

BIAS = "head.bias"
FOLDS = 4
LEAST = 1e-9  # variance of shares in which no batch differs


def shares_by_bias(
    moved: Float[Tensor, "examples classes"],
    shares: Float[Tensor, "examples classes"],
    asked: Float[Tensor, " classes"],
) -> tuple[Float[Tensor, " classes"], Float[Tensor, " classes"]]:
    """Return the share of each class in a batch, and the part of the variance it tells.

    1 where moves tell shares exactly, 0 where they tell nothing. It is that of examples
    outside of the fold on which the line was fitted; example n is in fold n modulo
    ``FOLDS``.

    Args:
        moved: How far training on each example's batch moved the bias.
        shares: Of the classes in these batches.
        asked: How far it moved in the upload.

    Example:
        >>> shares = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
        >>> moved = 0.1 * (shares - 1 / 3)  # a learning rate of 0.1, and three classes
        >>> found, known = shares_by_bias(moved, shares, torch.tensor([0.0, 0.05, -0.02]))
        >>> (found * 30).round().tolist(), known.round().tolist()
        ([10.0, 25.0, 4.0], [1.0, 1.0, 1.0])
    """
    fold = torch.arange(len(moved)) % FOLDS
    missed = torch.empty_like(shares)
    for out in range(FOLDS):
        theirs = fold == out
        missed[theirs] = shares[theirs] - _predicted(
            moved[~theirs], shares[~theirs], moved[theirs]
        )
    spread = shares.var(dim=0, correction=0).clamp(min=LEAST)
    known = 1 - missed.square().mean(dim=0) / spread
    return _predicted(moved, shares, asked[None])[0], known.clamp(0, 1)


def _predicted(
    moved: Float[Tensor, "examples classes"],
    shares: Float[Tensor, "examples classes"],
    asked: Float[Tensor, "others classes"],
) -> Float[Tensor, "others classes"]:
    """Return shares on the line through examples: a slope, and each class's own height."""
    middle, centre = moved.mean(dim=0), shares.mean(dim=0)
    about = moved - middle
    steepness = (about * (shares - centre)).sum() / about.square().sum().clamp(
        min=1e-30
    )
    return centre + steepness * (asked - middle)
