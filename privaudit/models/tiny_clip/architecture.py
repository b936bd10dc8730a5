"""Architecture of tiny-clip: CLIP, very small."""

from typing import Any

import torch

from privaudit.models.tiny_clip.network import SmallCLIP
from privaudit.models.tiny_clip.tokenizer import CONTEXT_LENGTH, TinyTokenizer

EMBED_DIM = 64
PICTURE_SIZE = 32  # what it looks at
IMAGE_SIZE = 64  # what its tower gets: doubled, so that attention pools a 2x2 grid


def configuration() -> dict[str, Any]:
    """Say how the model is built: the arguments of open_clip's ``CLIP``."""
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


def build_model(seed: int = 0) -> SmallCLIP:
    """Build the model at random weights.

    They come from torch's global state, which is put back afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCLIP(**configuration())
