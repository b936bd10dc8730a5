"""Row spans: what may have entered a dense layer, by how its weights moved.

The move of a dense layer is a sum of outer products of output gradients with the client's
own inputs, so its rows lie in their span. A number of the move is noised by the rounding
of what was sent. Noise of deviation t a number turns an input x = sum_i c_i v_i of the
span, v_i the right singular vectors, out of it by about t |c / s| sqrt(d - r), s the
singular values, d the input's width and r the rank: so for each x there is a bound.

Source: Petrov et al., "DAGER: exact gradient inversion for large language models", NeurIPS
2024, with one threshold for all inputs; the bound is derived here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.models.layer_factors import DIRECTIONS, row_space

SMALLEST = 1e-7  # of the largest singular value: arithmetic in float32
FULL = 0.95  # of the rank that a move can have: beyond, inputs may outnumber directions
TIMES, ARITHMETIC, MOST = 2.0, 2e-6, 0.05
"""An input is taken for one that entered if its part outside of the span is below so many
times what noise explains, and that of float32; and below so much in any case."""


@dataclass(frozen=True)
class RowSpan:
    """The span of what entered a layer.

    Attributes:
        values: Singular values of the moves, scaled to length 1 each and stacked.
        basis: Right singular vectors, as rows.
        noise: Deviation of a number of the stack.
        limit: The rank that the stack could have.
    """

    values: Float[Tensor, " r"]
    basis: Float[Tensor, "r d"]
    noise: float
    limit: int

    @classmethod
    def of(
        cls, moves: Sequence[Float[Tensor, "m d"]], floors: Sequence[float]
    ) -> "RowSpan | None":
        """Return the span of moves' rows; None where nothing moved.

        Args:
            moves: In float64.
            floors: Deviation of a number of each by rounding alone.
        """
        moved = [
            (m / m.norm(), f / float(m.norm()))
            for m, f in zip(moves, floors, strict=True)
            if m.norm() > 0 and m.isfinite().all()
        ]
        if not moved:
            return None
        rows, noise = torch.cat([m for m, _ in moved]), max(f for _, f in moved)
        values, basis = row_space(rows, noise, SMALLEST)
        limit = min(*rows.shape, DIRECTIONS)
        return cls(values.float(), basis.float(), noise, limit)

    @property
    def is_whole(self) -> bool:
        """Whether the rank is that of the inputs, and not of the layer or of noise."""
        return 0 < len(self.values) < FULL * self.limit

    def outside(self, inputs: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        """Return each input's part outside of the span, over what is taken for none."""
        along = inputs @ self.basis.T
        size = inputs.norm(dim=-1).clamp(min=1e-30)
        part = (inputs - along @ self.basis).norm(dim=-1) / size
        missing = (inputs.shape[-1] - len(self.values)) ** 0.5
        explained = self.noise * (along / self.values).norm(dim=-1) * missing / size
        return part / (TIMES * explained + ARITHMETIC).clamp(max=MOST)
