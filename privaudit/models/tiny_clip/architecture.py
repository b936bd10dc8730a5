"""The embedded model's architecture: open_clip's own CLIP, very small."""

from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.models.clip.torchvision_shim import import_open_clip
from privaudit.models.tiny_clip.tokenizer import CONTEXT_LENGTH, TinyTokenizer

Model: TypeAlias = Any  # open_clip.model.CLIP, which comes without types

EMBED_DIM = 64
PICTURE_SIZE = 32  # what it looks at
IMAGE_SIZE = 64  # what its tower gets: doubled, so that attention pools a 2x2 grid


def configuration() -> dict[str, Any]:
    """Say how open_clip builds the model: the arguments of ``CLIP``."""
    return {
        "embed_dim": EMBED_DIM,
        "vision_cfg": {
            "layers": [1, 1, 1, 1],
            "width": 16,
            "head_width": 64,
            "image_size": IMAGE_SIZE,
        },
        "text_cfg": {
            "context_length": CONTEXT_LENGTH,
            "vocab_size": TinyTokenizer().vocab_size,
            "width": 64,
            "heads": 4,
            "layers": 2,
        },
    }


def build_model(seed: int = 0) -> Model:
    """Build the model at random weights.

    open_clip draws them from torch's global state, which is put back afterwards.
    """
    open_clip = import_open_clip()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return open_clip.model.CLIP(**configuration())


def encode_text(model: Model, tokens: Int[Tensor, "n length"]) -> Float[Tensor, "n d"]:
    """Encode texts as the model does, cut behind the batch's last end token.

    Attention is causal, so nothing behind the end token can matter.
    """
    ends = tokens.argmax(-1)
    length = int(ends.max()) + 1
    embedded = model.token_embedding(tokens[:, :length])
    embedded = embedded + model.positional_embedding[:length]
    hidden = model.transformer(embedded, attn_mask=model.attn_mask[:length, :length])
    pooled = model.ln_final(hidden)[torch.arange(len(tokens)), ends]
    return pooled @ model.text_projection
