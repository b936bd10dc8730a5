"""Shared prefixes, the fast text path: what all classes share is computed once.

Prompts of all classes begin with the same start token and context, and in a causal
tower nothing depends on what comes later. So all rows of a prompt are one sequence
under one constant mask: the prefix, then every class's few tokens, each of which sees
the prefix and its own class's past. Behind the end token nothing is computed, and in
the last layer only end tokens are. However many classes and prompts there are, a step
launches as many kernels.

One mask over all rows costs more with every class. On a CPU, which waits for products
and not for launches, many classes lie in several rectangles, and rows see their own
rectangle behind a copy of the prefix.

Clipping per record asks for many vector-Jacobian products at the same contexts. Autograd
finds each as if it were the only one: it derives activations and norms anew, and goes
down to rows that no context reaches. In :class:`TextJacobian` what does not depend on the
vector is computed once, and all vectors of a context go through a layer in one product.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from privaudit.core.devices import chosen
from privaudit.models.clip.text_tower import PromptTokens, TextTower
from privaudit.models.transformers.tuned_modules import rerun

MOST_ROWS = 256  # of start, context and classes: scores of each with all are kept
RECTANGLE = 64  # rows, about, where a CPU has at least three such rectangles


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


class Packing:
    """Where the rows of a prompt stand: the prefix, then class after class.

    Args:
        prefix: Tokens of the start and the context.
        lengths: Of the classes.
        rectangles: Equal parts of the rows. The first holds the prefix; no class is in
            two, so some may end with padding.

    Attributes:
        whose: Class of each row; -1 for the prefix, which all see, -2 for padding.
        ends: Each class's end token.
    """

    def __init__(
        self, prefix: int, lengths: Sequence[int], rectangles: int = 1
    ) -> None:
        self.prefix, self.rectangles = prefix, rectangles
        needed = max(prefix, *lengths, -(-(prefix + sum(lengths)) // rectangles))
        while (stops := _stops(prefix, lengths, needed))[-1] > rectangles * needed:
            needed += 1
        self.whose = torch.full((rectangles * needed,), -2)
        self.whose[:prefix] = -1
        for number, (stop, length) in enumerate(zip(stops, lengths, strict=True)):
            self.whose[stop - length : stop] = number
        self.ends = torch.tensor(stops) - 1

    def seen(self) -> Bool[Tensor, "rows rows"]:
        """Say which rows each row sees, of all."""
        return ((self.whose[:, None] == self.whose) | (self.whose[None] == -1)).tril()

    def seen_beside(self) -> Bool[Tensor, "rectangles each keys"]:
        """Say what each rectangle's rows see of the keys that :meth:`beside` returns."""
        rows = torch.arange(len(self.whose)).view(self.rectangles, -1)
        copied = rows.flatten()[: self.prefix if self.rectangles > 1 else 0]
        asked = torch.cat([copied.expand(self.rectangles, -1), rows], dim=1)
        seen = self.seen()[rows[:, :, None], asked[:, None]]
        seen[0, :, : len(copied)] = False  # the first has the prefix itself
        return seen

    def beside(
        self, keys: Float[Tensor, "prompts rows heads size"]
    ) -> Float[Tensor, "parts keys heads size"]:
        """Return the keys of every prompt's rectangles, behind copies of the prefix."""
        if self.rectangles == 1:
            return keys
        parts = keys.unflatten(1, (self.rectangles, -1))
        prefix = parts[:, :1, : self.prefix].expand(-1, self.rectangles, -1, -1, -1)
        return torch.cat([prefix, parts], dim=2).flatten(0, 1)


def _stops(prefix: int, lengths: Sequence[int], each: int) -> list[int]:
    """Return where each class ends if none may lie in two rectangles."""
    stops = [prefix]
    for length in lengths:
        left = -stops[-1] % each
        stops.append(stops[-1] + length + (left if left < length else 0))
    return stops[1:]


def _added(seen: Tensor, like: Tensor) -> Tensor:
    """Return what is added to scores; rows begin where fused attention wants them to."""
    mask = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, -torch.inf)
    return pad(mask, (0, -mask.shape[-1] % 8)).to(like)[..., : mask.shape[-1]]


class SharedPrefixText:
    """A frozen causal text tower, bound to the texts of some classes.

    Args:
        tower: One that shares prefixes (:meth:`TextTower.shares_prefixes`). Its
            weights get no gradient.
        tokens: One row for each class.
        dtype: Type in which the blocks run, residuals too; None is the tower's own.
            Features are projected in the tower's own.
    """

    def __init__(
        self, tower: TextTower, tokens: PromptTokens, dtype: torch.dtype | None = None
    ) -> None:
        self.tower, self._is_cast = tower, dtype is not None
        start = tokens.context_start
        prefix = start + tokens.context_tokens
        stops = tower.end_positions(tokens.ids) + 1
        positions = tower.positional_embedding.detach()
        rows = prefix + int((stops - prefix).sum())
        many = rows // RECTANGLE if positions.device.type == "cpu" else 1
        packing = Packing(prefix, (stops - prefix).tolist(), many if many > 2 else 1)
        with torch.no_grad():
            self._blocks = [_Block(block, dtype) for block in tower.blocks]
            embedded = tower.token_embedding(tokens.ids) + positions
            places = torch.arange(len(positions), device=stops.device)
            is_own = (places >= prefix) & (places < stops[:, None])
            suffix = positions.new_zeros(len(packing.whose), tower.width)
            suffix[packing.whose >= 0] = embedded[is_own]
        self._start, self._suffix = embedded[0, :start], suffix[prefix:]
        self._context_positions = positions[start:prefix]
        self._packing, self._ends = packing, packing.ends.to(positions.device)
        like, seen = positions if dtype is None else positions.to(dtype), packing.seen()
        self._mask = _added(packing.seen_beside(), like)
        self._end_mask = _added(seen[None, packing.ends], like)
        self._whole_mask = _added(seen, positions)

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Encode every class behind every context; not l2-normalised."""
        states = self._embedded(contexts).to(self._mask.dtype)
        mask = self._mask
        if len(mask) > 1:  # one for each rectangle
            mask = mask.repeat(len(contexts), 1, 1)
        for block in self._blocks[:-1]:
            states = rerun(block, states, mask, self._packing)
        states = self._blocks[-1].ends(states, self._end_mask, self._ends)
        return self.tower.project(states.to(self._suffix.dtype))

    def jacobian(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> TextJacobian | None:
        """Return the tower at some contexts, for many products with its derivative.

        None where autograd finds them with less: many classes, products in another
        type, or layers that are to run again.
        """
        rows, (_, reruns) = len(self._packing.whose), chosen()
        if rows > MOST_ROWS or self._is_cast or reruns:
            return None
        context = slice(len(self._start), self._packing.prefix)
        states = self._embedded(contexts)
        return TextJacobian(self.tower, states, self._whole_mask, self._ends, context)

    def _embedded(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts rows width"]:
        fixed = (self._start, self._suffix)
        start, suffix = (part.expand(len(contexts), -1, -1) for part in fixed)
        return torch.cat([start, contexts + self._context_positions, suffix], dim=1)


class _Block:
    """One of open_clip's residual attention blocks over packed rows.

    The scale of attention is in the queries' weights.
    """

    def __init__(self, block: Any, dtype: torch.dtype | None) -> None:
        self.block = block if dtype is None else deepcopy(block).to(dtype)
        attention = self.block.attn
        self.heads, self.size = attention.num_heads, attention.head_dim
        scale = torch.ones_like(attention.in_proj_weight[:, 0])
        scale[: attention.embed_dim] = self.size**-0.5
        self.weight: Tensor = attention.in_proj_weight * scale[:, None]
        bias = attention.in_proj_bias
        self.bias = torch.zeros_like(scale) if bias is None else bias * scale

    def __call__(self, states: Tensor, mask: Tensor, packing: Packing) -> Tensor:
        """Run the block for all rows; see :meth:`Packing.seen_beside` for the mask."""
        queries, keys, values = self._mixed(self.block.ln_1(states), slice(None))
        queries = queries.unflatten(1, (packing.rectangles, -1)).flatten(0, 1)
        keys, values = packing.beside(keys), packing.beside(values)
        attended = _attend(queries, keys, values, mask)
        return self._finish(states, attended.reshape(states.shape))

    def ends(self, states: Tensor, mask: Tensor, ends: Tensor) -> Tensor:
        """Run the block for the end tokens only [prompts, classes, width]."""
        normed, width = self.block.ln_1(states), states.shape[-1]
        keys, values = self._mixed(normed, slice(width, None))
        states, normed = (part.index_select(1, ends) for part in (states, normed))
        (queries,) = self._mixed(normed, slice(width))
        return self._finish(states, _attend(queries, keys, values, mask))

    def _mixed(self, normed: Tensor, some: slice) -> tuple[Tensor, ...]:
        """Return some of queries, keys and values [prompts, rows, heads, size] each."""
        mixed = linear(normed, self.weight[some], self.bias[some])
        return mixed.unflatten(-1, (-1, self.heads, self.size)).unbind(-3)

    def _finish(self, states: Tensor, attended: Tensor) -> Tensor:
        states = states + self.block.ls_1(self.block.attn.out_proj(attended))
        return states + self.block.ls_2(self.block.mlp(self.block.ln_2(states)))


def _attend(
    queries: Float[Tensor, "parts rows heads size"],
    keys: Float[Tensor, "parts keys heads size"],
    values: Float[Tensor, "parts keys heads size"],
    mask: Float[Tensor, "some rows keys"],
) -> Float[Tensor, "parts rows width"]:
    queries, keys, values = (t.transpose(1, 2) for t in (queries, keys, values))
    mask = mask.unsqueeze(1)  # for all heads
    if _fuses(queries):
        attended = scaled_dot_product_attention(queries, keys, values, mask, scale=1.0)
    else:
        attended = (queries @ keys.mT + mask).softmax(dim=-1) @ values
    return attended.transpose(1, 2).flatten(2)


def _fuses(queries: Tensor) -> bool:
    """Say whether attention is one kernel.

    A CPU's kernel for bfloat16 takes five times as long backwards as that for float32,
    and there is none for the tensors of ``torch.func``.
    """
    is_slow = queries.device.type == "cpu" and queries.dtype == torch.bfloat16
    return not is_slow and not torch._C._functorch.is_functorch_wrapped_tensor(queries)
