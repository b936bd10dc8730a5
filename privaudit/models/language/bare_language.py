"""Causal language models without pictures, from a folder or the hub."""

from typing import Any

import torch

from privaudit.models.hugging_face import import_transformers, loading_errors


def load_language(source: str) -> tuple[Any, Any]:
    """Return a causal language model of transformers and its tokenizer.

    Code that comes with it is not run, and only safetensors weights are read.

    Args:
        source: A folder of transformers, or a name on the hub.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It cannot be used: see
            :func:`~privaudit.models.hugging_face.loading_errors`.
    """
    transformers = import_transformers()
    with loading_errors("language model", source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, trust_remote_code=False
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation="sdpa",
        )
    return model.eval().requires_grad_(False), tokenizer
