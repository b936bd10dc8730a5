"""Joint regression: an upload as a sum of candidates' own gradients, solved for who is in it.

A move of weights is y = -s G b + noise: G has a column for each candidate, its gradient;
b says how much each took part, s is the step, and noise is whatever is known or left:
rounding, privacy noise, what the straight path misses. Only inner products are needed, so
no gradient is ever stored: K = G'G of candidates with each other, and -G'y with the move.

By the prior that half of the candidates took part, b ~ N(1/2, 1/4) for each, y is normal,
too; step and noise of each tensor and round are those of the largest likelihood. Moves
then add up, each by its own noise, and a candidate's score is its log-likelihood ratio
with all others integrated out.

Where a round is one step on a batch, a member is in it by chance q alone. Each round is
solved by itself, for who was in its batch; with r its likelihood ratio of that, a round
says (1 - q) + q r of a member, and rounds' logarithms add up.

Members that are no candidates are a sum of gradients like public records': these are
columns, too, each with a share of mean and variance q, that of the largest likelihood.

An optimiser that divides by sizes (Adam) scales gradients number by number. They are held
against a move so scaled, too, and the account of the larger likelihood is taken.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Float

from privaudit.core.lazy_torch import Tensor, late, torch
from privaudit.models.layer_factors import LayerFactors

AT_ONCE = 1 << 26  # numbers of a product of factors that are in memory together
NOISE_GRID: Tensor = late(lambda: torch.logspace(-13, 4, 69, dtype=torch.float64))
"""Variances of a number's noise that are tried, over the mean of K's diagonal."""
SMALLEST = 1e-10  # part of a move's energy that no arithmetic in float32 explains
MEMBERS_VARY, OTHERS_VARY = 0.25, 1e-3
"""Variances of a member's share in a move and of another's, beyond the move's noise."""
TOOK_PART = 0.5  # of a candidate, before anything was seen
OUTSIDE = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Members outside of the candidates that are tried, for each public record."""


@dataclass(frozen=True)
class GramBlock:
    """How one tensor moved in one round, beside all candidates' gradients of it.

    Attributes:
        gram: Inner products of gradients.
        along: Of minus each gradient with the move.
        energy: The move's squared length.
        numbers: How many numbers moved.
        floor: Variance of a number by rounding alone, as it was sent.
        public: So many of the last columns are public records and no candidates.
        labels: So many columns in a row are one candidate's, with each label.
        is_layer: Whether the tensor is a dense layer's, whose path is nearly straight.
        batch_share: A member's chance to be in the batch that moved it.
    """

    gram: Float[Tensor, "n n"]
    along: Float[Tensor, " n"]
    energy: float
    numbers: int
    floor: float = 0.0
    public: int = 0
    labels: int = 1
    is_layer: bool = False
    batch_share: float = 1.0

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
        cls,
        factors: LayerFactors,
        move: Float[Tensor, "m d"],
        floor: float = 0.0,
        start: Float[Tensor, "m d"] | None = None,
    ) -> "GramBlock":
        """Return the block of a dense layer, from inputs and output gradients.

        Args:
            factors: Of the candidates.
            move: How the layer's weights moved.
            floor: As the attribute.
            start: The weights before; weight decay's part, any multiple of them, is
                left out of move and gradients.

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
        flat = inputs.flatten(0, 1), deltas.flatten(0, 1)
        along = _with(flat, move, places)
        chunk = max(1, AT_ONCE // (places * places * records))
        gram = torch.cat(
            [
                _pooled(flat, slice(first * places, (first + chunk) * places), places)
                for first in range(0, records, chunk)
            ]
        )
        energy = float(move.square().sum())
        block = cls(gram, -along, energy, move.numel(), floor)
        if start is None or not start.any():
            return block
        moved, size = float((start * move).sum()), float(start.square().sum())
        return block.without(_with(flat, start, places), moved, size)

    def without(
        self, along: Float[Tensor, " n"], moved: float, size: float
    ) -> "GramBlock":
        """Return the block of what is orthogonal to one direction.

        Args:
            along: Inner products of gradients with it.
            moved: Of the move with it.
            size: Its squared length.
        """
        return replace(
            self,
            gram=self.gram - torch.outer(along, along) / size,
            along=self.along + along * (moved / size),
            energy=max(self.energy - moved**2 / size, 0.0),
            numbers=self.numbers - 1,
        )

    @cached_property
    def fit(self) -> "StepFit | None":
        """Step and noise of the largest likelihood; None where nothing moved."""
        if not (float(self.gram.diagonal().mean()) > 0 and self.energy > 0):
            return None
        tried = OUTSIDE if self.public else OUTSIDE[:1]
        fits = (_fit(self, share) for share in tried)
        return max(fits, key=lambda one: one.likelihood)

    def prior(self, outside: float) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return mean and variance of each column's share, before anything was seen."""
        took_part = TOOK_PART * self.batch_share / self.labels
        mean = torch.full((len(self.along),), took_part, dtype=torch.float64)
        variance = torch.full_like(mean, took_part * (1 - took_part))
        mean[len(mean) - self.public :] = outside
        variance[len(mean) - self.public :] = outside
        return mean, variance


def likeliest(blocks: Iterable[GramBlock]) -> GramBlock:
    """Return the block, of one move under several accounts, that explains it best."""
    return max(blocks, key=lambda one: one.fit.likelihood if one.fit else -torch.inf)


def divided_by_size(factors: LayerFactors) -> LayerFactors:
    """Return gradients as Adam scales them: each number over its root mean square.

    Mean squares are those of rows times those of columns, over the mean of all: Shazeer
    and Stern, "Adafactor", ICML 2018. So gradients stay sums of outer products.
    """
    if factors.deltas is None:
        return factors
    inputs, deltas = factors.inputs.double(), factors.deltas.double()
    of_inputs, of_deltas = inputs.square(), deltas.square()
    columns = (of_inputs * of_deltas.sum(dim=2, keepdim=True)).mean(dim=(0, 1))
    rows = (of_deltas * of_inputs.sum(dim=2, keepdim=True)).mean(dim=(0, 1))
    scaled = [
        part * (sizes / sizes.mean()).clamp(min=1e-9).rsqrt() if sizes.any() else part
        for part, sizes in ((inputs, columns), (deltas, rows))
    ]
    return replace(factors, inputs=scaled[0], deltas=scaled[1])


def _with(
    flat: tuple[Float[Tensor, "nt d"], Float[Tensor, "nt m"]],
    matrix: Float[Tensor, "m d"],
    places: int,
) -> Float[Tensor, " n"]:
    """Return inner products of gradients with a matrix of the weights' shape."""
    chunks = zip(*(part.split(1024) for part in flat), strict=True)
    products = [((deltas @ matrix) * inputs).sum(dim=1) for inputs, deltas in chunks]
    return torch.cat(products).view(-1, places).sum(dim=1)


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
        likelihood: Logarithm of that of the move, up to a constant.
        outside: Members that are no candidates, for each public record.
    """

    step: float
    noise: float
    explained: float
    likelihood: float = -math.inf
    outside: float = 0.0


def _fit(block: GramBlock, outside: float) -> StepFit:
    """Return step and noise for some number of members that are no candidates."""
    size = float(block.gram.diagonal().mean())
    mean, variance = block.prior(outside)
    mean, deviation = mean[variance > 0], variance[variance > 0].sqrt()
    held = len(mean)  # columns in units of their deviation; public ones stand last
    values, vectors = torch.linalg.eigh(
        block.gram[:held, :held] * torch.outer(deviation, deviation)
    )
    kept = values > values[-1] * 1e-13
    values, vectors = values[kept], vectors[:, kept]
    seen = vectors.T @ (block.along[:held] * deviation) / values.sqrt()
    middle = values.sqrt() * (vectors.T @ (mean / deviation))
    others = max(block.numbers - len(values), 0)
    left = block.energy - float(seen @ seen)
    left = max(left, block.floor * others, SMALLEST * block.energy)
    likelihood, step, noise = likeliest_step(
        seen, middle, values, NOISE_GRID * size, left, others
    )
    return StepFit(step, noise, 1 - left / block.energy, likelihood, outside)


def likeliest_step(
    seen: Float[Tensor, " r"],
    middle: Float[Tensor, " r"],
    variances: Float[Tensor, " r"],
    grid: Float[Tensor, " noises"],
    left: float = 0.0,
    others: int = 0,
) -> tuple[float, float, float]:
    """Return the largest likelihood of seen ~ s N(middle, variances + noise), s and noise.

    For each noise of the grid the best step s is the root of a quadratic. Beside what is
    seen there may be ``others``, numbers of noise alone, of an energy that is ``left``.
    """
    count, spread, noises = len(seen) + others, variances + grid[:, None], grid.tolist()
    rests = [left / noise if others else 0.0 for noise in noises]
    sums = [(x / spread).sum(dim=1).tolist() for x in (seen**2, seen * middle)]
    inverses = []
    for own, cross, rest in zip(*sums, rests, strict=True):
        root = (cross**2 + 4 * (own + rest) * count) ** 0.5
        inverses.append((cross + root) / (2 * (own + rest)))
    steps = torch.tensor(inverses, dtype=spread.dtype)[:, None]
    misfits = ((steps * seen - middle) ** 2 / spread).sum(dim=1)
    best, fits = (-torch.inf, 0.0, 0.0), (spread.log().sum(dim=1) + misfits).tolist()
    for inverse, fit, rest, noise in zip(inverses, fits, rests, noises, strict=True):
        likelihood = count * math.log(inverse) - 0.5 * (fit + inverse**2 * rest)
        likelihood -= 0.5 * others * math.log(noise)
        best = max(best, (likelihood, 1 / inverse, noise))
    return best


@dataclass(frozen=True)
class Participation:
    """What moves say of who took part in them.

    Attributes:
        ratios: Log-likelihood ratio of each candidate, with all others integrated out.
        share: How much each took part, 1 for a member on average and 0 for another.
        variance: Of a share, by the moves' noise alone.
        batch_share: A member's chance to be in each of several rounds, whose shares and
            variances stand behind each other; 1 where all moves are one.
    """

    ratios: Float[Tensor, " n"]
    share: Float[Tensor, " all"]
    variance: Float[Tensor, " all"]
    batch_share: float = 1.0

    @property
    def expected_auroc(self) -> float:
        """The AUROC that the ratios promise, if shares lie where the model says.

        0 where a single normal distribution describes them better than members' and
        others': then something else than noise was left out.
        """
        inside = TOOK_PART * self.batch_share
        member = _log_density(self.share, 1.0, self.variance + MEMBERS_VARY)
        other = _log_density(self.share, 0.0, self.variance + OTHERS_VARY)
        one = _log_density(self.share, float(self.share.mean()), self.share.var())
        two = torch.logaddexp(math.log(inside) + member, math.log1p(-inside) + other)
        if float((two - one).sum()) < 0:
            return 0.0
        chance = torch.sigmoid(self.ratios[self.ratios.argsort()])
        below = (1 - chance).cumsum(0) - (1 - chance) / 2
        pairs = float(chance.sum() * (1 - chance).sum())
        return float((chance * below).sum()) / pairs if pairs > 0 else 0.0


def _log_density(
    x: Float[Tensor, " n"], mean: float, variance: Float[Tensor, "*n"]
) -> Float[Tensor, " n"]:
    """Return normal log-densities, but for their constant."""
    return -0.5 * (variance.log() + (x - mean).square() / variance)


def took_part(blocks: Sequence[GramBlock]) -> Participation | None:
    """Return how likely each candidate took part.

    A member's share is 1 on average and varies, as batches do; any other's is 0 but for
    what the straight path misses.

    Args:
        blocks: Of the same candidates; each adds what its own noise lets through.

    Returns:
        None where nothing moved.
    """
    known = [(block, fit) for block in blocks if (fit := block.fit) is not None]
    if not known:
        return None
    first = known[0][0]
    outside = sum(fit.outside for _, fit in known) / len(known)
    mean, spread = first.prior(outside)
    before = 1 / spread.clamp(min=1e-9)
    precision, pull = torch.diag(before), before * mean
    for block, fit in known:
        precision += block.gram / fit.noise
        pull += block.along / (fit.step * fit.noise)
    covariance = torch.linalg.inv(precision)
    asked = slice(len(mean) - first.public)
    own, found = covariance.diagonal()[asked], (covariance @ pull)[asked]
    # Of a share, by the moves alone: the prior taken out again.
    variance = 1 / (1 / own - before[asked]).clamp(min=1e-12)
    share = (found / own - (before * mean)[asked]) * variance
    member, other = variance + MEMBERS_VARY, variance + OTHERS_VARY
    misfit = (share - 1).square() / member - share.clamp(min=0).square() / other
    ratios = -0.5 * ((member / other).log() + misfit)
    return Participation(ratios, share, variance)


def over_rounds(rounds: Sequence[Sequence[GramBlock]]) -> Participation | None:
    """Return what all rounds say; where each is of one batch, as a mixture over its draw.

    Source: the density of a sampled Gaussian, (1 - q) N(0) + q N(1), is Mironov, Talwar,
    Zhang, "Renyi differential privacy of the sampled Gaussian mechanism", 2019,
    section 3; here of each candidate's share, with all others integrated out.

    Args:
        rounds: The blocks of each.

    Returns:
        None where nothing moved.
    """
    blocks = [block for of_round in rounds for block in of_round]
    if not blocks or (drawn := blocks[0].batch_share) == 1:
        return took_part(blocks)
    found = [one for one in map(took_part, rounds) if one is not None]
    if not found:
        return None
    said = torch.stack([one.ratios for one in found]) + math.log(drawn)
    ratios = torch.logaddexp(said, torch.tensor(math.log1p(-drawn))).sum(dim=0)
    share = torch.cat([one.share for one in found])
    return Participation(
        ratios, share, torch.cat([one.variance for one in found]), drawn
    )
