"""Encoders of texts of transformers, tuned to tell classes apart."""

from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, Texts
from privaudit.datasets.dialogues import TokenSequences
from privaudit.datasets.records import Records
from privaudit.models.feature_cache import cached_text_features
from privaudit.models.frozen_model import TunableClassifier, weights_hash
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.interfaces import Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.text_tokens import TextTokens
from privaudit.models.registry import ModelRequest
from privaudit.models.transformers.encoder import Pooling, TextEncoderTower
from privaudit.models.transformers.row_tower import without_pooler

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
