"""Joint regression: an upload as a sum of candidates' own gradients, solved for who is in it.

A move of weights is y = -s G b + noise: G has a column for each candidate, its gradient;
b says how much each took part, s is the step, and noise is whatever is known or left:
rounding, privacy noise, what the straight path misses. Only inner products are needed, so
no gradient is ever stored: K = G'G of candidates with each other, and -G'y with the move.

By the prior that half of the candidates took part, b ~ N(1/2, 1/4) for each, y is normal,
too; step and noise of each tensor and round are those of the largest likelihood. Moves
then add up, each by its own noise, and a candidate's score is its log-likelihood ratio
with all others integrated out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.models.layer_factors import LayerFactors

AT_ONCE = 1 << 26  # numbers of a product of factors that are in memory together
NOISE_GRID = torch.logspace(-13, 4, 69, dtype=torch.float64)
"""Variances of a number's noise that are tried, over the mean of K's diagonal."""
SMALLEST = 1e-10  # part of a move's energy that no arithmetic in float32 explains
MEMBERS_VARY, OTHERS_VARY = 0.25, 1e-3
"""Variances of a member's share in a move and of another's, beyond the move's noise."""
TOOK_PART, PRECISION = 0.5, 4.0  # of a candidate, before anything was seen


@dataclass(frozen=True)
class GramBlock:
    """How one tensor moved in one round, beside all candidates' gradients of it.

    Attributes:
        gram: Inner products of gradients.
        along: Of minus each gradient with the move.
        energy: The move's squared length.
        numbers: How many numbers moved.
        floor: Variance of a number by rounding alone, as it was sent.
    """

    gram: Float[Tensor, "n n"]
    along: Float[Tensor, " n"]
    energy: float
    numbers: int
    floor: float = 0.0

    @classmethod
    def of_rows(
        cls, rows: Float[Tensor, "n numbers"], move: Tensor, floor: float = 0.0
    ) -> "GramBlock":
        """Return the block of gradients that are there as rows."""
        rows, flat = rows.double(), move.double().flatten()
        energy = float(flat @ flat)
        return cls(rows @ rows.T, -rows @ flat, energy, flat.numel(), floor)

    @classmethod
    def of_factors(
        cls, factors: LayerFactors, move: Float[Tensor, "m d"], floor: float = 0.0
    ) -> "GramBlock":
        """Return the block of a dense layer, from inputs and output gradients.

        Raises:
            ValueError: There are no output gradients.
        """
        if factors.deltas is None:
            raise ValueError("A Gram matrix needs output gradients.")
        inputs, deltas = factors.inputs.double(), factors.deltas.double()
        records, places, width = inputs.shape
        numbers = width * deltas.shape[2]
        pairs = records * places**2 * (width + deltas.shape[2])
        if numbers * (places + records) < pairs and numbers * records <= AT_ONCE:
            rows = torch.einsum("npm,npd->nmd", deltas, inputs).flatten(1)
            return cls.of_rows(rows, move, floor)
        along = torch.stack(
            [((d @ move) * x).sum() for d, x in zip(deltas, inputs, strict=True)]
        )
        flat = inputs.flatten(0, 1), deltas.flatten(0, 1)
        chunk = max(1, AT_ONCE // (places * places * records))
        gram = torch.cat(
            [
                _pooled(flat, slice(first * places, (first + chunk) * places), places)
                for first in range(0, records, chunk)
            ]
        )
        return cls(gram, -along, float(move.square().sum()), move.numel(), floor)


def _pooled(
    flat: tuple[Float[Tensor, "nt d"], Float[Tensor, "nt m"]], rows: slice, places: int
) -> Float[Tensor, "some n"]:
    """Return some rows of K: products of factors, summed over places of both records."""
    products = [part[rows] @ part.T for part in flat]
    both = products[0].mul_(products[1])
    return both.view(-1, places, both.shape[1] // places, places).sum(dim=(1, 3))


@dataclass(frozen=True)
class StepFit:
    """What a move says about itself.

    Attributes:
        step: What gradients were multiplied by, as one number; above 0.
        noise: Variance of a number of the move, over the squared step.
        explained: Share of the move's energy that candidates' gradients can make.
    """

    step: float
    noise: float
    explained: float


def fit_step(block: GramBlock) -> StepFit | None:
    """Return step and noise of the largest likelihood; None where nothing moved."""
    size = float(block.gram.diagonal().mean())
    if not (size > 0 and block.energy > 0):
        return None
    values, vectors = torch.linalg.eigh(block.gram)
    held = values > values[-1] * 1e-13
    values, vectors = values[held], vectors[:, held]
    seen = vectors.T @ block.along / values.sqrt()
    middle = TOOK_PART * values.sqrt() * vectors.sum(dim=0)
    left = max(block.energy - float(seen @ seen), 0.0)
    left = max(
        left, block.floor * (block.numbers - len(values)), SMALLEST * block.energy
    )
    outside = max(block.numbers - len(values), 0)
    step, noise = likeliest_step(
        seen, middle, values / PRECISION, NOISE_GRID * size, left, outside
    )
    return StepFit(step, noise, 1 - left / block.energy)


def likeliest_step(
    seen: Float[Tensor, " r"],
    middle: Float[Tensor, " r"],
    variances: Float[Tensor, " r"],
    grid: Float[Tensor, " noises"],
    left: float = 0.0,
    outside: int = 0,
) -> tuple[float, float]:
    """Return step s and noise of the largest likelihood of seen ~ s N(middle, variances + noise).

    For each noise of the grid the best step is the root of a quadratic. Beside what is
    seen there may be further numbers ``outside``, noise alone, of an energy that is ``left``.
    """
    best, count = (-torch.inf, (0.0, 0.0)), len(seen) + outside
    for noise in grid.tolist():
        spread = variances + noise
        rest = left / noise if outside else 0.0
        squares = float((seen**2 / spread).sum()) + rest
        cross = float((seen * middle / spread).sum())
        inverse = (cross + (cross**2 + 4 * squares * count) ** 0.5) / (2 * squares)
        misfit = float(((inverse * seen - middle) ** 2 / spread).sum())
        likelihood = (
            count * torch.tensor(inverse).log().item()
            - 0.5 * (float(spread.log().sum()) + misfit + inverse**2 * rest)
            - 0.5 * outside * torch.tensor(noise).log().item()
        )
        if likelihood > best[0]:
            best = likelihood, (1 / inverse, noise)
    return best[1]


def took_part(blocks: Sequence[GramBlock]) -> Float[Tensor, " n"] | None:
    """Return each candidate's log-likelihood ratio of having taken part.

    A member's share is 1 on average and varies, as batches do; any other's is 0 but for
    what the straight path misses.

    Args:
        blocks: Of the same candidates; each adds what its own noise lets through.

    Returns:
        None where nothing moved.
    """
    fits = [(block, fit_step(block)) for block in blocks]
    known = [(block, fit) for block, fit in fits if fit is not None]
    return participation(known, MEMBERS_VARY, OTHERS_VARY) if known else None


def participation(
    blocks: Sequence[tuple[GramBlock, StepFit]],
    members_vary: float = 0.0,
    others_vary: float = 0.0,
) -> Float[Tensor, " n"]:
    """Return the same of moves whose step and noise are known; at least one.

    A member's share of 1 and another's of 0 may vary by some variance beyond the noise.
    """
    n = len(blocks[0][0].along)
    precision = PRECISION * torch.eye(n, dtype=torch.float64)
    pull = torch.full((n,), PRECISION * TOOK_PART, dtype=torch.float64)
    for block, fit in blocks:
        precision += block.gram / fit.noise
        pull += block.along / (fit.step * fit.noise)
    covariance = torch.linalg.inv(precision)
    own = covariance.diagonal()
    # Of a share, by the moves alone: the prior taken out again.
    variance = 1 / (1 / own - PRECISION).clamp(min=1e-12)
    share = ((covariance @ pull) / own - PRECISION * TOOK_PART) * variance
    member, other = variance + members_vary, variance + others_vary
    beyond = share.clamp(min=0) if others_vary < members_vary else share
    misfit = (share - 1).square() / member - beyond.square() / other
    return -0.5 * ((member / other).log() + misfit)
