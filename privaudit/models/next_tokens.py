"""Next-token distributions with the likeliest token set apart.

What the others have together, ``rest``, is summed without it. That keeps what a
confident model says exact: -log p has no digits left once p is rounded to 1, but
-log1p(-rest) has all of them.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

FLOOR = -1e4  # log-odds against the likeliest token; exp gives 0 in every precision
WIDTHS = (256, 128, 64, 32)

Rows = Float[Tensor, " rows"]


class NextTokens:
    """The distributions p of a few positions, and what can be read off them.

    Attributes:
        likeliest: Index of the likeliest token, the first of several.
        top: Its probability.
        log_top: The logarithm, in full precision also where ``top`` is rounded to 1.
        rest: What all others have together, 1 - top.
    """

    def __init__(
        self,
        logits: Float[Tensor, "rows vocabulary"],
        space: Float[Tensor, "3 rows vocabulary"],
    ) -> None:
        """Take the logits, which stay as they are, and space to work in."""
        highest, self.likeliest = _largest(logits)
        self._logits, self._highest = logits, highest[:, 0]
        self._odds = torch.sub(logits, highest, out=space[0]).clamp_(min=FLOOR)
        self._others = torch.softmax(self._odds, -1, out=space[1])
        self._work = space[2]
        self.top = self._others.gather(1, self.likeliest)[:, 0]
        self._others.scatter_(1, self.likeliest, 0)
        self._odds.scatter_(1, self.likeliest, FLOOR)
        self._second = self._odds.amax(-1)
        self.rest = self._others.sum(-1)
        exact = self.rest < 0.5
        self.log_top = torch.where(exact, torch.log1p(-self.rest), self.top.log())

    def renyi(self, alpha: float) -> Rows:
        """Return H_alpha, for an alpha other than 1."""
        if alpha == math.inf:
            return -self.log_top
        if alpha == 2:
            others = torch.linalg.vector_norm(self._others, dim=-1) / self.top
            powers = others.square_()
        elif alpha == 0.5:
            others = torch.sqrt(self._others, out=self._work).sum(-1)
            powers = others / self.top.sqrt()
        else:
            powers = torch.mul(self._odds, alpha, out=self._work).exp_().sum(-1)
        return (alpha * self.log_top + powers.log1p()) / (1 - alpha)

    def moments(self) -> tuple[Rows, Rows]:
        """Return mean and standard deviation of log p under p."""
        weighted = torch.mul(self._others, self._odds, out=self._work)
        mean = weighted.sum(-1)
        variance = weighted.mul_(self._odds).sum(-1) - mean.square()
        return self.log_top + mean, variance.clamp_(min=0).sqrt_()

    def gaps(self) -> tuple[Rows, Rows]:
        """Return by how much the likeliest leads: in probability, in its logarithm."""
        return -self.top * self._second.expm1(), -self._second

    def log_likelihood(self, tokens: Int[Tensor, " rows"]) -> Rows:
        """Return log p of a token of each row; -inf where it cannot come."""
        chosen = self._logits.gather(1, tokens[:, None])[:, 0]
        return chosen - self._highest + self.log_top

    def modified(
        self, tokens: Int[Tensor, " rows"], alphas: Sequence[float]
    ) -> Iterator[Rows]:
        """Yield the modified entropy of each alpha, for a token y of each row.

        With b = |alpha - 1| and s(x) = (1 - x^b) / b, which is -log x for b = 0, it is
        (1 - p_y) s(p_y) + sum_{j != y} p_j s(1 - p_j).
        """
        known, log_likelihood = tokens[:, None], self.log_likelihood(tokens)
        is_top = self.likeliest[:, 0] == tokens
        missed = torch.where(is_top, self.rest, -log_likelihood.expm1())
        log_rest = torch.where(
            self.rest > 0, self.rest.log(), self.log_top + self._second
        )
        share = self._others.gather(1, known)
        self._others.scatter_(1, known, 0)
        for alpha in alphas:
            power = abs(alpha - 1)
            of_known = missed * _surprise(log_likelihood, power)
            of_top = self.top * _surprise(log_rest, power)
            yield of_known + of_top.masked_fill(is_top, 0) + self._of_others(power)
        self._others.scatter_(1, known, share)

    def _of_others(self, power: float) -> Rows:
        """Return the sum of p s(1 - p) over all but the likeliest and the known."""
        others, work = self._others, self._work
        if power == 1:
            return torch.linalg.vector_norm(others, dim=-1).square_()
        if power == 0:
            logs = torch.neg(others, out=work).log1p_()
            return -logs.mul_(others).sum(-1)
        missed = torch.sub(1, others, out=work)
        missed = missed.sqrt_() if power == 0.5 else missed.pow_(power)
        weighted = missed.mul_(others).sum(-1)
        return (others.sum(-1) - weighted).clamp_(min=0) / power


def _surprise(log: Rows, power: float) -> Rows:
    """Return (1 - x^power) / power from log x; -log x for 0."""
    return -(power * log).expm1() / power if power else -log


def _largest(
    rows: Float[Tensor, "rows vocabulary"],
) -> tuple[Float[Tensor, "rows 1"], Int[Tensor, "rows 1"]]:
    """Return each row's largest value and where it stands first.

    A maximum is found several times faster than its place: the place is looked for
    in the best of many pieces only.
    """
    count, length = rows.shape
    width = next((width for width in WIDTHS if length % width == 0), length)
    pieces = rows.view(count, length // width, width)
    best = pieces.amax(-1).argmax(-1)
    value, place = pieces[torch.arange(count, device=rows.device), best].max(-1)
    return value[:, None], (best * width + place)[:, None]
