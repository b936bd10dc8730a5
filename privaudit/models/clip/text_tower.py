"""Text towers of open_clip: prompts as token ids, the tower's parts, and the plain text path.

The plain path runs every text at full length through open_clip's own tower. It serves
the towers whose tokens see later ones, and it is what the shared-prefix path must equal
on all others.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.models.transformers.tuned_modules import layers_of, recomputed


@runtime_checkable
class Tokenizer(Protocol):
    """Anything that turns texts into rows of token ids, as open_clip's do."""

    def __call__(self, texts: list[str], context_length: int) -> Tensor:
        """Return int64 ids [texts, context_length]: start, text, end, padding."""


@dataclass(frozen=True)
class PromptTokens:
    """Texts as token ids with room for a context.

    Attributes:
        ids: [start] [placeholders] [text] [end] [padding]; the placeholders are to be
            replaced by context vectors.
        context_start: Position of the first placeholder: 1, or 0 for a tokenizer
            that has no start token.
        context_tokens: How many context vectors there is room for.
    """

    ids: Int[Tensor, "texts length"]
    context_start: int
    context_tokens: int

    def to(self, device: torch.device) -> "PromptTokens":
        """Return the same on another device."""
        return replace(self, ids=self.ids.to(device))


def prompt_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], context_tokens: int, length: int
) -> PromptTokens:
    """Tokenise ``texts`` and leave room for a context after the start token.

    There is at least one text. ``context_tokens`` is 0 for plain texts; ``length``
    counts the positions that the text tower has.

    Raises:
        ConfigError: A text is empty or does not fit beside the context.
    """
    if not texts or context_tokens < 0:
        raise ConfigError(
            f"Prompts need a class and a context of 0 or more tokens; there are "
            f"{len(texts)} classes and {context_tokens} context tokens."
        )
    # Asked for more room than there is, so that what is too long is seen, not cut.
    rows = tokenizer(list(texts), context_length=4 * length)
    # Tokenizers name start and padding differently; two texts of one token tell them.
    first, second = tokenizer(["a", "e"], context_length=length)
    start, padding = int(first[0] == second[0]), int(first[-1])
    # An end token that is padding, too, is not counted by its row's length.
    hidden_end = tokenizer(["a e"], context_length=start + 2)[0, -1] == padding
    last = ((rows != padding) * torch.arange(1, rows.shape[1] + 1)).amax(dim=1)
    lengths = [taken + int(hidden_end) for taken in last.tolist()]
    for text, taken in zip(texts, lengths, strict=True):
        if not text.strip(" ."):
            raise ConfigError(f"A prompt needs a class name, and one is {text!r}.")
        if taken + context_tokens > length:
            raise ConfigError(
                f"The text {text!r} takes {taken} tokens with start and end, and "
                f"{context_tokens} context tokens leave {length - context_tokens} of "
                f"the text tower's {length}. Shorten it, or use fewer context tokens."
            )
    # Any token of the text will do, but not padding, which some towers mask.
    placeholders = rows[:, start : start + 1].expand(-1, context_tokens)
    ids = torch.cat([rows[:, :start], placeholders, rows[:, start:]], dim=1)
    return PromptTokens(ids[:, :length].contiguous(), start, context_tokens)


@dataclass(frozen=True)
class TextTower:
    """What turns token embeddings into a text feature.

    Attributes:
        positional_embedding: Added to them; one row for each position.
        blocks: The transformer's residual attention blocks, first to last.
        ln_final: Applied before the projection.
        projection: A matrix (feature = x @ matrix), a linear layer, or none.
        attention_mask: Added to the attention scores; None if all see all.
        pooling: Which position becomes the feature, as open_clip names it.
        end_id: The end token, where ``pooling`` is "eos".
        has_class_token: An extra token after the text, as in CoCa.
    """

    token_embedding: nn.Embedding
    positional_embedding: Float[Tensor, "positions width"]
    blocks: Sequence[nn.Module]
    ln_final: nn.Module
    projection: Float[Tensor, "width dim"] | nn.Linear | None
    attention_mask: Float[Tensor, "positions positions"] | None
    pooling: str
    end_id: int
    has_class_token: bool

    @property
    def width(self) -> int:
        """Size of a token's vector, and so of a context vector."""
        return self.token_embedding.embedding_dim

    @property
    def dim(self) -> int:
        """Size of a text feature."""
        if isinstance(self.projection, nn.Linear):
            return self.projection.out_features
        return self.width if self.projection is None else self.projection.shape[1]

    def project(
        self, states: Float[Tensor, "*texts width"]
    ) -> Float[Tensor, "*texts dim"]:
        """Return the features of the final states at the end token."""
        normed = self.ln_final(states)
        if self.projection is None:
            return normed
        if isinstance(self.projection, nn.Linear):
            return cast(Tensor, self.projection(normed))
        return normed @ self.projection

    def end_positions(self, ids: Int[Tensor, "texts length"]) -> Int[Tensor, " texts"]:
        """Return where each text's end token stands, by the tower's own rule."""
        if self.pooling == "eos":
            return (ids == self.end_id).int().argmax(dim=1)
        return ids.argmax(dim=1)

    def shares_prefixes(self) -> bool:
        """Say whether texts with a common beginning can share its keys and values.

        They can where every token sees only earlier ones, the feature is read at the
        end token, and the blocks are open_clip's ordinary ones.
        """
        return (
            self.pooling in ("argmax", "eos")
            and not self.has_class_token
            and _is_causal(self.attention_mask)
            and all(_is_ordinary(block) for block in self.blocks)
        )


@dataclass(frozen=True)
class WholeTextTower:
    """A text tower of transformers: it is run by its own forward pass only.

    Attributes:
        dim: Size of a text feature.
        width: Size of a token's vector, and so of a context vector.
        blocks: Its layers that can run again for the gradient.
    """

    token_embedding: nn.Embedding
    dim: int
    width: int
    blocks: Sequence[nn.Module]


def any_text_tower(clip: nn.Module) -> TextTower | WholeTextTower:
    """Find the text tower of an open_clip model, also where it is one of transformers.

    Raises:
        ConfigError: It is neither an open_clip transformer nor one of transformers.
    """
    parts: Any = getattr(clip, "text", clip)
    inner: Any = getattr(parts, "transformer", None)
    if hasattr(inner, "get_input_embeddings"):
        embedding, dim = inner.get_input_embeddings(), int(parts.output_dim)
        width = embedding.embedding_dim
        return WholeTextTower(embedding, dim, width, layers_of(inner))
    return text_tower(clip)


def text_tower(clip: nn.Module) -> TextTower:
    """Find the text tower of an open_clip ``CLIP``, ``CustomTextCLIP`` or ``CoCa``.

    Raises:
        ConfigError: The text tower is no open_clip transformer.
    """
    parts: Any = getattr(clip, "text", clip)
    if not isinstance(getattr(parts, "token_embedding", None), nn.Embedding):
        raise ConfigError(
            f"{type(parts).__name__} is a text tower without open_clip's layers, and "
            "they are what is tuned. Choose a model whose text tower is open_clip's "
            "own, such as ViT-B-16, or a trainer of prompts, such as promptfl."
        )
    return TextTower(
        token_embedding=parts.token_embedding,
        positional_embedding=parts.positional_embedding,
        blocks=list(parts.transformer.resblocks),
        ln_final=parts.ln_final,
        projection=parts.text_projection,
        attention_mask=parts.attn_mask,
        pooling=getattr(parts, "text_pool_type", None) or parts.pool_type,
        end_id=getattr(parts, "text_eos_id", None) or parts.eos_id,
        has_class_token=getattr(parts, "cls_emb", None) is not None,
    )


def _is_causal(mask: Tensor | None) -> bool:
    if mask is None:
        return False
    allowed = torch.ones_like(mask, dtype=torch.bool).tril()
    return bool((mask[allowed] == 0).all() and mask[~allowed].isneginf().all())


def _is_ordinary(block: nn.Module) -> bool:
    attention = getattr(block, "attn", None)
    return (
        type(block).__name__ == "ResidualAttentionBlock"
        and isinstance(attention, nn.MultiheadAttention)
        and attention.in_proj_weight is not None
        and attention.bias_k is None
        and not attention.add_zero_attn
        and not hasattr(block, "ln_1_kv")
    )


def plain_prompt_features(
    clip: nn.Module,
    tokens: PromptTokens,
    contexts: Float[Tensor, "prompts tokens width"],
) -> Float[Tensor, "prompts texts dim"]:
    """Encode every text behind every context; features are not l2-normalised.

    open_clip's ``encode_text`` runs unmodified; only what its token embedding returns
    is changed on the way, so every kind of tower and pooling is served. Gradients flow
    to the contexts.
    """
    first, count = tokens.context_start, tokens.context_tokens
    prompts, texts = len(contexts), len(tokens.ids)
    each = contexts.repeat_interleave(texts, dim=0)

    def put_contexts(module: nn.Module, ids: Any, embedded: Tensor) -> Tensor:
        inserted = each.to(embedded.dtype)
        return torch.cat(
            [embedded[:, :first], inserted, embedded[:, first + count :]], dim=1
        )

    encode: Any = clip.encode_text
    tower = any_text_tower(clip)
    hook = tower.token_embedding.register_forward_hook(put_contexts)
    try:
        with recomputed(tower.blocks, nullcontext):
            features = encode(tokens.ids.repeat(prompts, 1))
    finally:
        hook.remove()
    features = features[0] if isinstance(features, tuple) else features
    return torch.unflatten(features, 0, (prompts, texts))
