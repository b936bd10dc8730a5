"""Captioning models: pictures in front of a language model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.records import PictureTokens, Records
from privaudit.models.clip.picture_preparation import Pictures, check_pixels
from privaudit.models.feature_cache import cached_tokens
from privaudit.models.frozen_model import PictureModel, WritingModel
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel


@dataclass(frozen=True)
class PictureTower:
    """Makes pictures into tokens of the language model.

    Attributes:
        encode: From prepared pictures to tokens, the projector included.
        prepare: From pictures (grey or RGB, bytes or floats from 0 to 1) to what
            ``encode`` takes.
        image_size: Side of a prepared picture, in pixels.
        parts: Tokens of a picture.
        description: What beside the weights decides about a picture's tokens.
    """

    encode: Callable[[Tensor], Tensor]
    prepare: Callable[[Pictures], Tensor]
    image_size: int
    parts: int
    description: str


class CaptioningVLM(WritingModel, PictureModel):
    """Pictures in front of a frozen language model.

    Raises:
        ConfigError: Words have places for another number of parts.
    """

    language: StackedLanguageModel

    def __init__(
        self,
        name: str,
        encoder: PictureTower,
        language: StackedLanguageModel,
        dialogue_tokens: DialogueTokens,
        model_hash: str,
    ) -> None:
        if encoder.parts != dialogue_tokens.parts:
            raise ConfigError(
                f"A picture has {encoder.parts} tokens, and words have places for "
                f"{dialogue_tokens.parts}. Give both the same number."
            )
        self.name, self.language, self.model_hash = name, language, model_hash
        self.parts, self.width = encoder.parts, language.width
        self.token_width = self.width
        self.image_size = encoder.image_size
        self._encoder, self.words = encoder, dialogue_tokens

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return pictures as the language model reads them, and what is said of them."""
        tokens = cached_tokens(self, dataset.pictures)
        words = self.words(dataset.dialogues)
        features = normalize(tokens.mean(dim=1), dim=-1)
        held = PictureTokens.of(tokens)
        return Records(features, dataset.labels, held, words, dataset.dialogues)

    @property
    def device(self) -> torch.device:
        """Where the language model runs."""
        return self.language.device

    @property
    def template(self) -> str:
        """The prompt, with {image} and {question} where they go."""
        return self.words.template

    @property
    def description(self) -> str:
        """What beside the weights decides about a picture's tokens."""
        return self._encoder.description

    def preprocess_batch(self, pictures: Pictures) -> Float[Tensor, "n 3 size size"]:
        """Make pictures of one size into what :meth:`encode_tokens` takes.

        Raises:
            ConfigError: Another number of channels, floats beyond 0 to 1, or no pixels.
        """
        check_pixels(pictures)
        return self._encoder.prepare(pictures)

    @torch.no_grad()
    def encode_tokens(
        self, pictures: Float[Tensor, "n 3 h w"], batch: int = 64
    ) -> Float[Tensor, "n parts width"]:
        """Return each prepared picture's tokens as the language model reads them.

        They are encoded ``batch`` at a time.
        """
        parts = pictures.split(batch)
        return torch.cat([self._encoder.encode(p.to(self.device)) for p in parts])

    def tokens_of_bank(
        self, embeddings: Float[Tensor, "n bank_width"]
    ) -> Float[Tensor, "n parts width"]:
        """Refuse embeddings that an image tower made elsewhere."""
        raise ConfigError(
            f"{self.name} reads pictures of {self.image_size} pixels, and was given "
            f"embeddings of {embeddings.shape[1]}. Give those, or make a projector for "
            "these: privaudit pretrain projector."
        )
