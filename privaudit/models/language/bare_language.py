"""Loading of causal language models without pictures, from a folder or the hub."""

from typing import Any

import torch

from privaudit.core.devices import CPU
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.quantisation import Bits


def load_language(
    source: str,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    bits: Bits | None = None,
) -> tuple[Any, Any]:
    """Return a causal language model of transformers and its tokenizer.

    Code that comes with it runs only where it is trusted, and only safetensors weights
    are read. Those of linear layers are packed into ``bits``, if any.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It cannot be used: see
            :func:`~privaudit.models.hugging_face.loading_errors`.
    """
    what = "language model"
    tokenizer = load_reader("AutoTokenizer", what, source)
    model = load_model("AutoModelForCausalLM", what, source, device, dtype, bits)
    return model, tokenizer
