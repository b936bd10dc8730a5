"""Encoders of texts that are tuned to tell classes apart."""

from functools import cached_property, partial
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.datasets.dataset import Dataset, Texts
from privaudit.datasets.dialogues import TokenSequences
from privaudit.datasets.records import Records
from privaudit.models.feature_cache import cached_text_features
from privaudit.models.frozen_model import weights_hash
from privaudit.models.interfaces import Tower, Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.text_tokens import TextTokens
from privaudit.models.transformers.encoder import Pooling, TextEncoderTower
from privaudit.models.transformers.row_tower import in_batches
from privaudit.models.transformers.tunable_classifiers import (
    TunableClassifier,
    without_pooler,
)


class TextClassifier(TunableClassifier):
    """An encoder of texts.

    Args:
        name: As ``--model`` takes it.
        model: ``AutoModel``'s; its pooler, if it has one, is taken out.
        tokenizer: Of transformers.
        targets: Layers that may be changed.
    """

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

    def features(self, words: TokenSequences) -> Float[Tensor, "n dim"]:
        """Return the frozen model's vector of each text, l2-normalised."""

        def encode(some: TokenSequences) -> Tensor:
            there = some.repeated(1).trimmed().to(self._model.device)
            return self._plain.vectors(there, Tuning())[0]

        return normalize(in_batches(encode, words), dim=-1)

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

    def tower(self, class_names: tuple[str, ...], template: str) -> Tower:
        """Return the encoder with a head for so many classes."""
        return self._tower(len(class_names))

    def _tower(self, classes: int) -> TextEncoderTower:
        return TextEncoderTower(
            self._model,
            classes,
            pooling=self._pooling,
            separator=self._separator,
            targets=self._targets,
        )

    @cached_property
    def _plain(self) -> TextEncoderTower:
        return self._tower(1)


def _separator(model: Any, tokenizer: Any) -> int | None:
    """Return the token behind which a second text stands, if the model knows types."""
    kinds = int(getattr(model.config, "type_vocab_size", 0) or 0)
    uses_types = "token_type_ids" in tokenizer.model_input_names
    if not uses_types or kinds < 2 or tokenizer.sep_token_id is None:
        return None
    return int(tokenizer.sep_token_id)
