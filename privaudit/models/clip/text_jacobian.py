"""Vector-Jacobian products of a causal text tower at some contexts, many at once.

Clipping per record asks for many vector-Jacobian products at the same contexts. Autograd
finds each as if it were the only one: it derives activations and norms anew, and goes
down to rows that no context reaches. Here what does not depend on the vector is computed
once, and all vectors of a context go through a layer in one matrix product.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from privaudit.models.clip.text_tower import TextTower

MOST_ROWS = 256  # of start, context and classes: scores of each with all are kept


class TextJacobian:
    """The text features of some contexts, and products with their derivative.

    Vectors of one context stand side by side, [k, rows, n, width], so that a layer's
    weights meet them all in one product.

    Args:
        tower: One that shares prefixes; its weights get no gradient.
        states: Embedded tokens: the start, the context and those of all classes.
        mask: Added to attention scores.
        ends: The classes' end tokens.
        context: Where the context stands.

    Attributes:
        features: l2-normalised, of the classes in the order of ``ends``.
    """

    features: Float[Tensor, "k classes dim"]

    def __init__(
        self,
        tower: TextTower,
        states: Float[Tensor, "k rows width"],
        mask: Float[Tensor, "rows rows"],
        ends: Int[Tensor, " classes"],
        context: slice,
    ) -> None:
        self._layers = []
        for number, block in enumerate(tower.blocks):
            last = number == len(tower.blocks) - 1
            needed = slice(None) if number else context
            layer = _Layer(block, states, mask, ends if last else None, needed)
            self._layers.append(layer)
            states = layer.output
        self._final = _Norm(tower.ln_final, states)
        features = tower.project(states)
        self._final_weight = self._final.before(_matrix(tower))
        self._length = features.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        self.features = features / self._length

    @torch.no_grad()
    def products(
        self, behind: Float[Tensor, "n k classes dim"]
    ) -> Float[Tensor, "n k tokens width"]:
        """Return the gradients of <behind, features> by the contexts, for every n."""
        found = behind.permute(1, 2, 0, 3)
        features, length = self.features.unsqueeze(2), self._length.unsqueeze(2)
        along = (found * features).sum(dim=-1, keepdim=True)
        found = torch.addcmul(found, features, along, value=-1).div_(length)
        found = self._final.back(found @ self._final_weight)
        for layer in reversed(self._layers):
            found = layer.back(found)
        return found.permute(2, 0, 1, 3)


class _Norm:
    """A layer norm at some states."""

    def __init__(self, norm: Any, states: Float[Tensor, "k rows width"]) -> None:
        self.output, mean, self._inverse = torch.native_layer_norm(
            states, states.shape[-1:], norm.weight, norm.bias, norm.eps
        )
        self._normed, self._weight = (states - mean) * self._inverse, norm.weight

    def before(self, weight: Float[Tensor, "inputs width"]) -> Tensor:
        """Return a weight that gives what :meth:`back` takes: scaled, and centred."""
        weight = weight if self._weight is None else weight * self._weight
        return weight - weight.mean(dim=-1, keepdim=True)

    def back(self, behind: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return products by the states of some rows [k, some, n, width]."""
        normed = self._normed[:, rows].unsqueeze(2)
        along = (behind * normed).mean(dim=-1, keepdim=True)
        across = torch.addcmul(behind, normed, along, value=-1)
        return across.mul_(self._inverse[:, rows].unsqueeze(2))


class _Layer:
    """A residual attention block at some states.

    Attributes:
        output: Of all rows, or of end tokens alone where they are given.
    """

    def __init__(
        self,
        block: Any,
        states: Float[Tensor, "k rows width"],
        mask: Float[Tensor, "rows rows"],
        ends: Int[Tensor, " classes"] | None,
        needed: slice,
    ) -> None:
        self.block, self.ends, self.needed = block, ends, needed
        self.norm_1 = _Norm(block.ln_1, states)
        attention = block.attn
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        mixed = linear(self.norm_1.output, weight, bias)
        mixed = mixed.unflatten(-1, (3, attention.num_heads, -1))
        queries, self.keys, self.values = mixed.permute(2, 0, 3, 1, 4).unbind()
        if ends is not None:
            queries, mask, states = queries[:, :, ends], mask[ends], states[:, ends]
        self.scale = queries.shape[-1] ** -0.5
        self.queries = queries * self.scale
        self.weights = (self.queries @ self.keys.mT + mask).softmax(dim=-1)
        self.taken = self.weights @ self.values
        joined = self.taken.transpose(1, 2).flatten(2)
        states = states + block.ls_1(attention.out_proj(joined))
        self.norm_2 = _Norm(block.ln_2, states)
        inner = block.mlp.c_fc(self.norm_2.output)
        active, self.slope = _with_slope(block.mlp.gelu, inner)
        self.output = states + block.ls_2(block.mlp.c_proj(active))
        self.into = self.norm_1.before(weight)
        self.out = _scaled(attention.out_proj.weight, block.ls_1)
        self.up = self.norm_2.before(block.mlp.c_fc.weight)
        self.down = _scaled(block.mlp.c_proj.weight, block.ls_2)

    def back(self, behind: Float[Tensor, "k r n width"]) -> Tensor:
        """Return products by the states of the needed rows [k, needed, n, width]."""
        mlp = (behind @ self.down).mul_(self.slope.unsqueeze(2)) @ self.up
        behind = behind + self.norm_2.back(mlp)
        by_queries, by_keys, by_values = self._attended(behind @ self.out)
        width = behind.shape[-1]
        mixed = torch.cat([by_keys, by_values], dim=-1) @ self.into[width:]
        if self.ends is None:
            mixed += by_queries @ self.into[:width]
            return self.norm_1.back(mixed, self.needed) + behind[:, self.needed]
        if self.needed != slice(None):  # one layer: no end token is in the context
            return self.norm_1.back(mixed, self.needed)
        mixed[:, self.ends] += by_queries @ self.into[:width]
        products = self.norm_1.back(mixed)
        products[:, self.ends] += behind
        return products

    def _attended(self, behind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return products by queries, keys and values of the needed rows."""
        heads, n = self.keys.shape[1], behind.shape[2]
        behind = behind.unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4).contiguous()
        by_weights = (behind.flatten(2, 3) @ self.values.mT).unflatten(2, (-1, n))
        level = (behind * self.taken.unsqueeze(3)).sum(dim=-1, keepdim=True)
        scores = by_weights.sub_(level).mul_(self.weights.unsqueeze(3))
        by_values = self.weights[..., self.needed].mT @ behind.flatten(3)
        by_keys = scores[..., self.needed].flatten(3).mT @ self.queries
        asking = scores if self.ends is not None else scores[:, :, self.needed]
        by_queries = asking.flatten(2, 3) @ self.keys * self.scale
        return (
            _merged(by_queries.unflatten(2, (-1, n))),
            _merged(by_keys.unflatten(2, (n, -1)).transpose(2, 3)),
            _merged(by_values.unflatten(3, (n, -1))),
        )


def _merged(heads: Float[Tensor, "k heads rows n size"]) -> Tensor:
    return heads.permute(0, 2, 3, 1, 4).flatten(3)


def _matrix(tower: TextTower) -> Tensor:
    """Return what a product with features becomes a product with states by."""
    projection = tower.projection
    if isinstance(projection, torch.nn.Linear):
        return projection.weight
    return torch.eye(tower.width) if projection is None else projection.mT


def _scaled(weight: Tensor, layer_scale: Any) -> Tensor:
    gamma = getattr(layer_scale, "gamma", None)
    return weight if gamma is None else gamma.unsqueeze(1) * weight


def _with_slope(activation: Any, inner: Tensor) -> tuple[Tensor, Tensor]:
    """Return an activation, and its derivative at each number."""
    with torch.enable_grad():
        leaf = inner.detach().requires_grad_()
        active = activation(leaf)
        (slope,) = torch.autograd.grad(active.sum(), leaf)
    return active.detach(), slope
