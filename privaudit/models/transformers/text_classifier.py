"""Encoders of texts of transformers, tuned to tell classes apart, and how texts are tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, Texts
from privaudit.datasets.records import INSTRUCTION, PADDING, Records, TokenSequences
from privaudit.models.feature_cache import cached_text_features
from privaudit.models.frozen_model import TunableClassifier, weights_hash
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.interfaces import Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.registry import ModelRequest
from privaudit.models.transformers.towers import (
    Pooling,
    TextEncoderTower,
    second_texts,
    without_pooler,
)


@dataclass(frozen=True)
class TextTokens:
    """Writes texts with the special tokens that the tokenizer puts around them.

    Attributes:
        context: Tokens that the encoder takes; None if it does not say.
        separator: The token behind which the second of two texts stands, where the
            encoder tells the two apart; else None.
    """

    tokenizer: Any
    context: int | None = None
    separator: int | None = None

    def __call__(self, texts: Texts) -> TokenSequences:
        """Return rows of tokens, padded at the right to the longest.

        Raises:
            ConfigError: A text does not fit into the context, or holds the tokenizer's
                own mark between two texts.
        """
        rows = [self._row(number, parts) for number, parts in enumerate(texts.texts)]
        padding = self.tokenizer.pad_token_id or 0
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
        lengths = torch.tensor([len(row) for row in rows])[:, None]
        real = torch.arange(ids.shape[1])[None] < lengths
        return TokenSequences(ids, torch.where(real, INSTRUCTION, PADDING))

    def _row(self, record: int, parts: Sequence[str]) -> Int[Tensor, " length"]:
        made = self.tokenizer(*parts, verbose=False)
        ids = torch.tensor(made["input_ids"])
        if self.context is not None and len(ids) > self.context:
            raise ConfigError(
                f"Record {record} takes {len(ids)} tokens, and the encoder takes "
                f"{self.context}. Shorten its text, or leave it out."
            )
        if self.separator is None:
            return ids
        type_ids = second_texts(
            TokenSequences(ids, torch.full_like(ids, INSTRUCTION)), self.separator
        )
        if type_ids.tolist() != made["token_type_ids"]:
            raise ConfigError(
                f"Record {record} holds {self.tokenizer.sep_token!r}, the tokenizer's "
                "own mark between two texts. Take that out of it."
            )
        return ids


_ROWS_AT_ONCE = 64  # through a frozen tower


class TextClassifier(TunableClassifier):
    """An encoder of texts, ``AutoModel``'s; its pooler, if it has one, is taken out."""

    def __init__(
        self, name: str, model: Any, tokenizer: Any, targets: TargetNames
    ) -> None:
        self.name, self._model, self._targets = name, without_pooler(model), targets
        self.model_hash = weights_hash(model)
        self._separator = _separator(model, tokenizer)
        first = tokenizer.cls_token_id is not None
        self._pooling: Pooling = "first" if first else "mean"
        self.words = TextTokens(tokenizer, self._plain.context, self._separator)
        self.dim = int(model.config.hidden_size)

    @property
    def description(self) -> str:
        """What beside the weights decides about a text's feature."""
        return f"{self._model.config.to_json_string()} {self._pooling}"

    @torch.no_grad()
    def features(self, words: TokenSequences) -> Float[Tensor, "n dim"]:
        """Return the frozen model's vector of each text, l2-normalised."""
        vectors = []
        for first in range(0, len(words.ids), _ROWS_AT_ONCE):
            some = words[first : first + _ROWS_AT_ONCE].repeated(1).trimmed()
            there = some.to(self._model.device)
            vectors.append(self._plain.vectors(there, Tuning())[0])
        return normalize(torch.cat(vectors), dim=-1)

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return texts as tokens, and their features."""
        assert isinstance(dataset.images, Texts)
        words = self.words(dataset.images)
        features = cached_text_features(
            (self.model_hash, self.name, self.description),
            dataset.images,
            partial(self.features, words),
        )
        return Records(features, dataset.labels, words=words)

    def tower(self, class_names: tuple[str, ...], template: str) -> TextEncoderTower:
        """Return the encoder with a head for so many classes."""
        return TextEncoderTower(
            self._model,
            len(class_names),
            pooling=self._pooling,
            separator=self._separator,
            targets=self._targets,
        )

    @cached_property
    def _plain(self) -> TextEncoderTower:
        return self.tower(("nothing",), "{}")


def load_encoder(request: ModelRequest) -> TextClassifier:
    """Load an encoder of texts, frozen."""
    where = request.device, request.dtype, request.bits
    model = load_model("AutoModel", "encoder", request.source, *where)
    if model.config.is_encoder_decoder or getattr(model.config, "is_decoder", False):
        raise ConfigError(
            f"{request.source!r} is a model of type {model.config.model_type!r}, which "
            "writes. Name it decoder: or seq2seq:, or use an encoder, such as BERT."
        )
    tokenizer = load_reader("AutoTokenizer", "tokenizer", request.source)
    return TextClassifier(request.name, model, tokenizer, request.targets)


def _separator(model: Any, tokenizer: Any) -> int | None:
    """Return the token behind which a second text stands, if the model knows types."""
    kinds = int(getattr(model.config, "type_vocab_size", 0) or 0)
    uses_types = "token_type_ids" in tokenizer.model_input_names
    if not uses_types or kinds < 2 or tokenizer.sep_token_id is None:
        return None
    return int(tokenizer.sep_token_id)
