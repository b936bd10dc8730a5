"""tiny-llava, the captioning model that comes with the package, as it was pretrained."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.models.clip.picture_preparation import PicturePreparation, Pictures
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import ModelRequest
from privaudit.models.tiny_llava.architecture import (
    IMAGE_SIZE,
    TOKENS,
    Llama,
    build_model,
)
from privaudit.models.tiny_llava.tokenizer import LlavaTokenizer
from privaudit.models.weight_files import load_embedded

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
    where = folder or Path(__file__).parent
    model, model_hash = load_embedded(where, "tiny-llava", build_model)
    encode = torch.no_grad()(model.encoder)
    return TinyLlava(encode, model.language, LlavaTokenizer(), model_hash)


def load_tiny_llava(request: ModelRequest) -> CaptioningVLM:
    """Load ``tiny-llava`` as all other code takes it."""
    embedded = load()
    tokenizer = StartedTokenizer(embedded.tokenizer)
    model = embedded.language.to(request.device, request.dtype)
    language = StackedLanguageModel(model, tokenizer, request.targets)

    def encode(pictures: Tensor) -> Tensor:  # on the CPU, where the small tower is
        return embedded.encode(pictures.cpu()).to(request.device)

    encoder = PictureTower(encode, prepare, IMAGE_SIZE, TOKENS, repr(prepare))
    words = DialogueTokens(tokenizer, "{image}{question}", TOKENS, language.context)
    return CaptioningVLM(request.name, encoder, language, words, embedded.model_hash)


class StartedTokenizer:
    """The embedded model's tokenizer, called as those of transformers are."""

    def __init__(self, tokenizer: LlavaTokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eot_token_id
        self.pad_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return a text's tokens, behind the start token or without it."""
        start = [self._tokenizer.sot_token_id] if add_special_tokens else []
        return [*start, *self._tokenizer.encode(text)]

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of some tokens; special ones are always left out."""
        return self._tokenizer.decode(token_ids)
