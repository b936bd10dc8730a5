"""How records enter dense layers: inputs and output gradients, whoever wrote the model.

Of a layer z = W x + b, a record's gradient of W is the sum over its places (tokens,
patches) of outer products of the loss's gradient by z with x. Whoever has both factors
has the gradient, and never needs it whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float

from privaudit.core.lazy_torch import Tensor, functional, torch


@dataclass(frozen=True)
class LayerFactors:
    """Each record's gradient of one weight, as sums of outer products.

    Attributes:
        inputs: What enters the layer. A last column of ones stands for a bias that is
            learned, too.
        deltas: The loss's gradient by what leaves it; None where the model let no
            gradient through.
        bias: The name of that bias; empty where none is learned.
        is_transposed: Whether the weight is kept as [columns, rows].
    """

    inputs: Float[Tensor, "records places columns"]
    deltas: Float[Tensor, "records places rows"] | None = None
    bias: str = ""
    is_transposed: bool = False

    def move(self, name: str, moves: Mapping[str, Tensor]) -> Float[Tensor, "m d"]:
        """Return how the weight moved, and its bias as a last column, in float64."""
        moved = moves[name].double()
        moved = moved.T if self.is_transposed else moved.flatten(1)
        if self.bias:
            moved = torch.cat([moved, moves[self.bias].double().view(-1, 1)], dim=1)
        return moved

    @classmethod
    def join(cls, parts: Sequence["LayerFactors"], dim: int) -> "LayerFactors":
        """Return factors of further records (dim 0), or of further places (dim 1).

        Records of fewer places than others get empty ones.
        """
        deltas = [part.deltas for part in parts if part.deltas is not None]
        return replace(
            parts[0],
            inputs=_side_by_side([part.inputs for part in parts], dim),
            deltas=_side_by_side(deltas, dim) if len(deltas) == len(parts) else None,
        )


def _side_by_side(parts: Sequence[Tensor], dim: int) -> Tensor:
    if dim == 0:
        most = max(part.shape[1] for part in parts)
        parts = [
            functional.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts
        ]
    return torch.cat(list(parts), dim)
