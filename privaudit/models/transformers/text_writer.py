"""Frozen language models that write, and look at no pictures."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.datasets.dataset import Dataset
from privaudit.datasets.dialogues import PADDING, Dialogue, TokenSequences
from privaudit.datasets.picture_tokens import PictureTokens
from privaudit.datasets.records import Records
from privaudit.models.frozen_model import FrozenModel, weights_hash
from privaudit.models.interfaces import LanguageModel
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel


class TextWriter(FrozenModel):
    """A language model, and how questions and answers are written as its tokens.

    Args:
        name: As ``--model`` takes it.
        language: What reads and writes.
        dialogue_tokens: Without places for pictures.
    """

    def __init__(
        self, name: str, language: StackedLanguageModel, dialogue_tokens: DialogueTokens
    ) -> None:
        self.name, self.language = name, language
        self._dialogue_tokens = dialogue_tokens
        self.model_hash = weights_hash(language.model)

    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int = 0
    ) -> LanguageModel:
        """Return the language model: no class is bound to it."""
        return self.language

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return questions and answers as tokens, and their mean embeddings."""
        words = self.words(dataset.dialogues)
        pictures = PictureTokens.of(self.no_pictures(len(dataset)))
        features = self.features(words)
        return Records(features, dataset.labels, pictures, words, dataset.dialogues)

    def words(
        self, dialogues: Sequence[Dialogue], with_answers: bool = True
    ) -> TokenSequences:
        """Return dialogues as rows of tokens; see :class:`DialogueTokens`.

        Raises:
            ConfigError: A row is longer than the context, or an answer is empty.
        """
        return self._dialogue_tokens(dialogues, with_answers)

    @torch.no_grad()
    def features(self, words: TokenSequences) -> Float[Tensor, "n width"]:
        """Return the mean of each record's embedded tokens, l2-normalised."""
        table = self.language.model.get_input_embeddings()
        means = []
        for ids, kinds in zip(words.ids, words.kinds, strict=True):
            embedded = table(ids[kinds != PADDING].to(self.language.device))
            means.append(embedded.float().mean(dim=0))
        return normalize(torch.stack(means), dim=-1)

    def no_pictures(self, records: int) -> Float[Tensor, "n 0 width"]:
        """Return what stands for the pictures of so many records: no parts."""
        return torch.zeros(records, 0, self.language.width)
