"""Load the embedded captioning model as it was pretrained."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.models.clip.picture_preparation import PicturePreparation, Pictures
from privaudit.models.tiny_llava.architecture import IMAGE_SIZE, Llama, Model
from privaudit.models.tiny_llava.tokenizer import LlavaTokenizer
from privaudit.models.tiny_llava.weights import load_weights

prepare = PicturePreparation(
    IMAGE_SIZE, (0.5,) * 3, (0.25,) * 3, "bilinear", fit="squash"
)
"""From grey or RGB pictures of any size to what the image tower takes."""


@dataclass(frozen=True)
class TinyLlava:
    """The model in its parts.

    A sequence is: start token, 16 picture tokens, the question's words, the answer's
    words, end token. The start token and every word go through
    ``language.get_input_embeddings()``; picture tokens take their place as they are.

    Attributes:
        encode: From prepared pictures to picture tokens, without gradient.
        language: transformers' ``LlamaForCausalLM``, frozen, in evaluation mode.
        tokenizer: Words to numbers and back; padding is number 0.
        model_hash: SHA-256 of the weights' file.
        prepare: From pictures to what ``encode`` takes.
    """

    encode: Callable[[Float[Tensor, "n 3 64 64"]], Float[Tensor, "n 16 d"]]
    language: Llama
    tokenizer: LlavaTokenizer
    model_hash: str
    prepare: Callable[[Pictures], Float[Tensor, "n 3 64 64"]] = prepare


def load(folder: Path | None = None) -> TinyLlava:
    """Load ``tiny-llava``, frozen, in evaluation mode, on the CPU.

    Args:
        folder: Where its files are; by default those that came with privaudit.

    Raises:
        MissingFileError: When one of them is not there.
        ConfigError: When the weights do not have the hash that belongs to them.
    """
    model, model_hash = load_weights(folder or Path(__file__).parent)
    return in_parts(model, model_hash)


def in_parts(model: Model, model_hash: str) -> TinyLlava:
    """Give a model's parts as :func:`load` does."""
    encode = torch.no_grad()(model.encoder)
    return TinyLlava(encode, model.language, LlavaTokenizer(), model_hash)
