"""tiny-llava, the captioning model that comes with the package."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import MODELS, ModelFamily, ModelRequest
from privaudit.models.tiny_llava.architecture import IMAGE_SIZE, TOKENS
from privaudit.models.tiny_llava.loading import load

_TEMPLATE = "{image}{question}"


def _load(asked: ModelRequest) -> CaptioningVLM:
    embedded = load()
    tokenizer = StartedTokenizer(embedded.tokenizer)
    model = embedded.language.to(asked.device, asked.dtype)
    language = StackedLanguageModel(model, tokenizer, asked.targets)
    prepare = embedded.prepare
    encode = _elsewhere(embedded.encode, asked.device)
    eye = PictureTower(encode, prepare, IMAGE_SIZE, TOKENS, repr(prepare))
    words = DialogueTokens(tokenizer, _TEMPLATE, TOKENS, language.context)
    return CaptioningVLM(asked.name, eye, language, words, embedded.model_hash)


def _elsewhere(
    encode: Callable[[Tensor], Tensor], device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Encode on the CPU, where the small tower is, for a model that is elsewhere."""
    return lambda pictures: encode(pictures.cpu()).to(device)


class StartedTokenizer:
    """The embedded model's tokenizer, as those of transformers are called.

    Args:
        tokenizer: With start and end tokens; padding is number 0.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = int(tokenizer.eot_token_id)
        self.pad_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return a text's tokens, behind the start token or without it."""
        start = [self._tokenizer.sot_token_id] if add_special_tokens else []
        return [*start, *self._tokenizer.encode(text)]

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of some tokens; special ones are always left out."""
        return str(self._tokenizer.decode(token_ids))


MODELS.register("tiny-llava")(ModelFamily("generation", _load))
