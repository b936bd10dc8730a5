"""How records enter dense layers: inputs and output gradients, whoever wrote the model.

Of a layer z = W x + b, a record's gradient of W is the sum over its places (tokens,
patches) of outer products of the loss's gradient by z with x. Whoever has both factors
has the gradient, and never needs it whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float

from privaudit.core.lazy_torch import Tensor, functional, torch

DIRECTIONS = 512  # of an update, beyond which the largest are found by random ones
SMALLEST = 1e-6  # of the largest singular value: arithmetic in float32


@dataclass(frozen=True)
class LayerFactors:
    """Each record's gradient of one weight, as sums of outer products.

    Attributes:
        inputs: What enters the layer. A last column of ones stands for a bias that is
            learned, too.
        deltas: The loss's gradient by what leaves it; None where the model let no
            gradient through.
        is_place: Which places a record has, where some have fewer than others; None
            where all have all.
        bias: The name of that bias; empty where none is learned.
        is_transposed: Whether the weight is kept as [columns, rows].
    """

    inputs: Float[Tensor, "records places columns"]
    deltas: Float[Tensor, "records places rows"] | None = None
    is_place: Bool[Tensor, "records places"] | None = None
    bias: str = ""
    is_transposed: bool = False

    def move(self, name: str, moves: Mapping[str, Tensor]) -> Float[Tensor, "m d"]:
        """Return how the weight moved, and its bias as a last column, in float64."""
        moved = moves[name].double()
        moved = moved.T if self.is_transposed else moved.flatten(1)
        if self.bias:
            moved = torch.cat([moved, moves[self.bias].double().view(-1, 1)], dim=1)
        return moved

    @property
    def there(self) -> Bool[Tensor, "records places"]:
        """Which places a record has."""
        if self.is_place is not None:
            return self.is_place
        return torch.ones(self.inputs.shape[:2], dtype=torch.bool)

    def has_inputs_of(self, other: "LayerFactors") -> bool:
        """Return whether equal inputs entered at the same places."""
        pairs = (self.inputs, other.inputs), (self.there, other.there)
        return all(torch.equal(*pair) for pair in pairs)

    def without_bias(self) -> "LayerFactors":
        """Return the same as if no bias were learned."""
        if not self.bias:
            return self
        return replace(self, inputs=self.inputs[..., :-1], bias="")

    @classmethod
    def join(
        cls, parts: Sequence["LayerFactors"], dim: int, rows: Tensor | None = None
    ) -> "LayerFactors":
        """Return factors of further records (dim 0), or of further places (dim 1).

        Records of fewer places than others get empty ones, which are no places. ``rows``
        says in which order records are returned.
        """
        if len(parts) == 1 and rows is None:
            return parts[0]

        def joined(each: Sequence[Tensor]) -> Tensor:
            if dim == 0:
                most = max(one.shape[1] for one in each)
                each = [functional.pad(t, (0, 0, 0, most - t.shape[1])) for t in each]
            whole = torch.cat(list(each), dim)
            return whole if rows is None else whole[rows]

        there = joined([part.there[..., None] for part in parts])[..., 0]
        deltas = [part.deltas for part in parts if part.deltas is not None]
        return replace(
            parts[0],
            inputs=joined([part.inputs for part in parts]),
            deltas=joined(deltas) if len(deltas) == len(parts) else None,
            is_place=None if there.all() else there,
        )


def where_reached(entered: Mapping[str, LayerFactors]) -> dict[str, LayerFactors]:
    """Return the inputs alone, at places that records' losses depend on.

    Where no gradient passed a layer, as before a factor that is still zero, these are
    the ones of all layers of as many places; where it passed none of them, all.
    """
    moves = {
        name: one.there & one.deltas.any(dim=2)
        for name, one in entered.items()
        if one.deltas is not None
    }
    of_any = dict[int, Tensor]()
    for reached in moves.values():
        places = reached.shape[1]
        of_any[places] = reached | of_any.get(places, reached)
    found = {}
    for name, one in entered.items():
        there = one.there
        of_others = of_any.get(there.shape[1], there)
        for reached in (of_others, moves.get(name, of_others)):
            there = torch.where(reached.any(dim=1, keepdim=True), reached, there)
        found[name] = replace(one, deltas=None, is_place=there)
    return found


def row_space(
    rows: Float[Tensor, "m d"], floor: float, smallest: float = SMALLEST
) -> tuple[Float[Tensor, " r"], Float[Tensor, "r d"]]:
    """Return singular values and right vectors above rounding, of large updates the largest.

    Args:
        rows: Updates of a layer's weights, below each other; d inputs enter it.
        floor: Deviation of a number of them by rounding alone.
        smallest: Part of the largest singular value that arithmetic makes of nothing.
    """
    if min(rows.shape) <= DIRECTIONS:
        _, values, span = torch.linalg.svd(rows, full_matrices=False)
    else:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            _, values, right = torch.svd_lowrank(rows, DIRECTIONS, niter=2)
        span = right.T
    edge = 1.1 * floor * (rows.shape[0] ** 0.5 + rows.shape[1] ** 0.5)
    is_above = values > max(edge, smallest * float(values[0]))
    return values[is_above], span[is_above]
