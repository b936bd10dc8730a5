"""Text towers of open_clip: their parts, wherever the model keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.models.transformers.recomputed_layers import layers_of


@dataclass(frozen=True)
class TextTower:
    """What turns token embeddings into a text feature.

    Attributes:
        token_embedding: From token ids to vectors.
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
        token_embedding: From token ids to vectors.
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
