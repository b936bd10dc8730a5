"""Shared prefixes, the fast text path: what all classes share is computed once.

Prompts of all classes begin with the same start token and context, and in a causal
tower nothing depends on what comes later. So the prefix runs once for each prompt; the
few tokens of each class attend to its keys and values and to their own past; behind
the end token nothing is computed, and in the last layer only end tokens are. All
linear layers see one packed sequence without padding: the prefix, then the classes,
ordered by length so that those of one length form a rectangle.

Clipping per record asks for many vector-Jacobian products at the same contexts. Autograd
finds each as if it were the only one: it derives activations and norms anew, and goes
down to rows that no context reaches. In :class:`TextJacobian` what does not depend on the
vector is computed once, and all vectors of a context go through a layer in one product.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from privaudit.core.devices import chosen
from privaudit.models.clip.text_tower import PromptTokens, TextTower
from privaudit.models.transformers.tuned_modules import rerun

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


@dataclass(frozen=True)
class Packing:
    """How a packed sequence is laid out.

    Attributes:
        prefix: Tokens of the start and the context.
        groups: (classes, tokens of each) of each run of equally long classes.
    """

    prefix: int
    groups: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest class."""
        return self.groups[-1][1]

    @property
    def classes(self) -> int:
        """Classes in all groups."""
        return sum(count for count, _ in self.groups)

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (classes, tokens, first, end) of each group in the packed sequence."""
        first = self.prefix
        for count, length in self.groups:
            yield count, length, first, first + count * length
            first += count * length

    def mask(self, *, ends_only: bool) -> Tensor:
        """Return what is added to the scores of [prefix keys, own keys] [rows, keys].

        Rows are the packed tokens, or the classes' end tokens.
        """
        blocked = float("-inf")
        parts = []
        if not ends_only:
            causal = torch.full((self.prefix, self.prefix), blocked).triu(1)
            parts.append(pad(causal, (0, self.longest), value=blocked))
        for count, length in self.groups:
            causal = torch.full((length, length), blocked).triu(1)
            own_mask = pad(causal, (0, self.longest - length), value=blocked)
            rows = pad(own_mask[-1:] if ends_only else own_mask, (self.prefix, 0))
            parts.append(rows.repeat(count, 1))
        return torch.cat(parts)

    def dense_mask(self) -> Tensor:
        """Return what is added to the scores of all packed tokens [rows, rows]."""
        whose = [torch.zeros(self.prefix)]
        for count, length, first, _ in self.spans():
            whose.append(torch.arange(count).repeat_interleave(length) + first)
        classes = torch.cat(whose)
        seen = (classes[:, None] == classes) | (classes == 0)
        return torch.zeros(seen.shape).masked_fill(~seen.tril(), float("-inf"))

    def ends(self) -> list[int]:
        """Return where each class's end token stands."""
        return [
            first + (place + 1) * length - 1
            for count, length, first, _ in self.spans()
            for place in range(count)
        ]


class SharedPrefixText:
    """A frozen causal text tower, bound to the texts of some classes.

    Args:
        tower: One that shares prefixes (:meth:`TextTower.shares_prefixes`). Its
            weights get no gradient.
        tokens: One row for each class.
        matmul_type: Type in which the large matrix products run; layer norms,
            attention and residuals keep the tower's own.
    """

    def __init__(
        self,
        tower: TextTower,
        tokens: PromptTokens,
        matmul_type: torch.dtype | None = None,
    ) -> None:
        self.tower, self._matmul_type = tower, matmul_type
        self._blocks = [_Block(block, matmul_type) for block in tower.blocks]
        start = tokens.context_start
        prefix = start + tokens.context_tokens
        lengths = (tower.end_positions(tokens.ids) + 1 - prefix).tolist()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        runs = groupby(lengths[index] for index in order)
        groups = tuple((len(list(run)), length) for length, run in runs)
        self._packing = Packing(prefix, groups)
        with torch.no_grad():
            positions = tower.positional_embedding.detach()
            embedded = tower.token_embedding(tokens.ids) + positions
            suffixes = [embedded[i, prefix : prefix + lengths[i]] for i in order]
            self._start = embedded[0, :start]
            self._suffix = torch.cat(suffixes)
            self._context_positions = positions[start:prefix]
            masks = (self._packing.mask(ends_only=last) for last in (False, True))
            self._mask, self._end_mask = (mask.to(positions) for mask in masks)
        self._restore = torch.tensor(order, device=positions.device).argsort()

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Encode every class behind every context; not l2-normalised."""
        states = self._embedded(contexts)
        for block in self._blocks[:-1]:
            states = rerun(block, states, self._packing, self._mask)
        ends = self._blocks[-1].ends(states, self._packing, self._end_mask)
        return self.tower.project(ends).index_select(1, self._restore)

    def jacobian(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> TextJacobian | None:
        """Return the tower at some contexts, for many products with its derivative.

        None where autograd finds them with less: many classes, products in another
        type, or layers that are to run again.
        """
        rows, (_, reruns) = self._packing.prefix + len(self._suffix), chosen()
        if rows > MOST_ROWS or self._matmul_type is not None or reruns:
            return None
        ends = torch.tensor(self._packing.ends(), device=contexts.device)
        return TextJacobian(
            self.tower,
            self._embedded(contexts),
            self._packing.dense_mask().to(contexts),
            ends[self._restore],
            slice(len(self._start), self._packing.prefix),
        )

    def _embedded(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts rows width"]:
        prompts = len(contexts)
        start = self._start.expand(prompts, -1, -1)
        suffix = self._suffix.expand(prompts, -1, -1)
        return torch.cat([start, contexts + self._context_positions, suffix], dim=1)


class _Block:
    """One of open_clip's residual attention blocks over a packed sequence."""

    def __init__(self, block: Any, matmul_type: torch.dtype | None) -> None:
        self.block = block if matmul_type is None else _cast(block, matmul_type)
        self.heads: int = self.block.attn.num_heads
        self.weight: Tensor = self.block.attn.in_proj_weight.detach()
        bias = self.block.attn.in_proj_bias
        self.bias = self.weight.new_zeros(len(self.weight)) if bias is None else bias

    def __call__(self, states: Tensor, packing: Packing, mask: Tensor) -> Tensor:
        normed = self.block.ln_1(states)
        mixed = linear(normed.to(self.weight.dtype), self.weight, self.bias)
        queries, keys, values = self._split(mixed.to(states.dtype), 3)
        attended = _attend(queries, keys, values, packing, mask)
        return self._finish(states, attended)

    def ends(self, states: Tensor, packing: Packing, mask: Tensor) -> Tensor:
        """Run the block for the end tokens only [prompts, classes, width]."""
        width = states.shape[-1]
        normed = self.block.ln_1(states).to(self.weight.dtype)
        mixed = linear(normed, self.weight[width:], self.bias[width:])
        keys, values = self._split(mixed.to(states.dtype), 2)
        projected = linear(
            _ends(normed, packing), self.weight[:width], self.bias[:width]
        )
        (queries,) = self._split(projected.to(states.dtype), 1)
        attended = _attend(queries, keys, values, packing, mask)
        return self._finish(_ends(states, packing), attended)

    def _split(self, mixed: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Cut [prompts, tokens, parts * width] into [prompts, heads, tokens, size]."""
        return (
            torch.unflatten(mixed, -1, (parts, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )

    def _finish(self, states: Tensor, attended: Tensor) -> Tensor:
        joined = attended.transpose(1, 2).flatten(2).to(self.weight.dtype)
        states = states + self.block.ls_1(self.block.attn.out_proj(joined))
        normed = self.block.ln_2(states).to(self.weight.dtype)
        return states + self.block.ls_2(self.block.mlp(normed))


def _attend(
    queries: Float[Tensor, "prompts heads rows size"],
    keys: Float[Tensor, "prompts heads tokens size"],
    values: Float[Tensor, "prompts heads tokens size"],
    packing: Packing,
    mask: Float[Tensor, "rows keys"],
) -> Float[Tensor, "prompts heads rows size"]:
    """Attend to the prefix, which all rows share, and to each class's own tokens."""
    prefix = packing.prefix
    queries = queries * queries.shape[-1] ** -0.5
    shared = queries @ keys[:, :, :prefix].transpose(-1, -2)
    own = _own_scores(queries, keys, packing)
    weights = (torch.cat([shared, own], dim=-1) + mask).softmax(dim=-1)
    from_prefix = weights[..., :prefix] @ values[:, :, :prefix]
    return from_prefix + _own_values(weights[..., prefix:], values, packing)


def _own_scores(queries: Tensor, keys: Tensor, packing: Packing) -> Tensor:
    """Return scores of each row with its class's tokens, padded to the longest."""
    parts = []
    for rows, (count, length, first, end) in _rows(queries, packing):
        own_keys = torch.unflatten(keys[:, :, first:end], 2, (count, length))
        scores = torch.unflatten(rows, 2, (count, -1)) @ own_keys.transpose(-1, -2)
        parts.append(pad(scores.flatten(2, 3), (0, packing.longest - length)))
    return _after_prefix(parts, queries, packing)


def _own_values(weights: Tensor, values: Tensor, packing: Packing) -> Tensor:
    """Return what each row takes from its class's tokens."""
    parts = []
    for rows, (count, length, first, end) in _rows(weights, packing):
        own_values = torch.unflatten(values[:, :, first:end], 2, (count, length))
        taken = torch.unflatten(rows[..., :length], 2, (count, -1)) @ own_values
        parts.append(taken.flatten(2, 3))
    return _after_prefix(parts, weights, packing)


def _rows(
    packed: Tensor, packing: Packing
) -> Iterator[tuple[Tensor, tuple[int, int, int, int]]]:
    """Yield each group's rows; where only end tokens ask, there is one for a class."""
    ends_only = packed.shape[2] == packing.classes
    first_row = 0 if ends_only else packing.prefix
    for span in packing.spans():
        count = span[0] if ends_only else span[0] * span[1]
        yield packed[:, :, first_row : first_row + count], span
        first_row += count


def _after_prefix(parts: Sequence[Tensor], packed: Tensor, packing: Packing) -> Tensor:
    """Join the groups, behind rows of zeros where the prefix has rows too."""
    joined = torch.cat(list(parts), dim=2)
    missing = packed.shape[2] - joined.shape[2]
    return pad(joined, (0, 0, missing, 0)) if missing else joined


def _ends(states: Tensor, packing: Packing) -> Tensor:
    """Pick the end token of each class from a packed sequence."""
    ends = [
        torch.unflatten(states[:, first:end], 1, (count, length))[:, :, -1]
        for count, length, first, end in packing.spans()
    ]
    return torch.cat(ends, dim=1)


def _cast(block: nn.Module, matmul_type: torch.dtype) -> Any:
    copied = deepcopy(block)
    for module in copied.modules():
        if isinstance(module, nn.Linear | nn.MultiheadAttention):
            module.to(matmul_type)
    return copied
