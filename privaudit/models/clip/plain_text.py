"""The ordinary text path: every text at full length through open_clip's own tower.

It serves the towers whose tokens see later ones, and it is what the shared-prefix
path must equal on all others.
"""

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.models.clip.prompt_tokens import PromptTokens
from privaudit.models.clip.text_tower import any_text_tower
from privaudit.models.transformers.recomputed_layers import recomputed


def plain_text_features(
    clip: nn.Module,
    tokens: PromptTokens,
    contexts: Float[Tensor, "texts tokens width"],
) -> Float[Tensor, "texts dim"]:
    """Encode texts whose placeholders are replaced by context vectors.

    open_clip's ``encode_text`` runs unmodified; only what its token embedding returns
    is changed on the way, so every kind of tower and pooling is served. Gradients flow
    to the contexts, of which each text has one; features are not l2-normalised.
    """
    first, count = tokens.context_start, tokens.context_tokens

    def put_contexts(module: nn.Module, ids: Any, embedded: Tensor) -> Tensor:
        inserted = contexts.to(embedded.dtype)
        return torch.cat(
            [embedded[:, :first], inserted, embedded[:, first + count :]], dim=1
        )

    encode: Any = clip.encode_text
    tower = any_text_tower(clip)
    hook = tower.token_embedding.register_forward_hook(put_contexts)
    try:
        with recomputed(tower.blocks, nullcontext):
            features = encode(tokens.ids)
    finally:
        hook.remove()
    return features[0] if isinstance(features, tuple) else features


def plain_prompt_features(
    clip: nn.Module,
    tokens: PromptTokens,
    contexts: Float[Tensor, "prompts tokens width"],
) -> Float[Tensor, "prompts texts dim"]:
    """Encode every text behind every context; features are not l2-normalised."""
    prompts, texts = len(contexts), len(tokens.ids)
    repeated = PromptTokens(
        tokens.ids.repeat(prompts, 1), tokens.context_start, tokens.context_tokens
    )
    each = contexts.repeat_interleave(texts, dim=0)
    features = plain_text_features(clip, repeated, each)
    return torch.unflatten(features, 0, (prompts, texts))
