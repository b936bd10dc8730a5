"""Frozen language models that write, and look at no pictures."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.datasets.dialogues import PADDING, Dialogue, TokenSequences
from privaudit.models.language.captioning_vlm import weights_hash
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel


class TextWriter:
    """A language model, and how questions and answers are written as its tokens.

    Args:
        name: As ``--model`` takes it.
        language: What reads and writes.
        dialogue_tokens: Without places for pictures.

    Attributes:
        model_hash: SHA-256 of all weights.
        public_indices: None: what it was trained on is not known.
        data_hash: None.
    """

    public_indices: tuple[int, ...] | None = None
    data_hash: str | None = None

    def __init__(
        self, name: str, language: StackedLanguageModel, dialogue_tokens: DialogueTokens
    ) -> None:
        self.name, self.language = name, language
        self._dialogue_tokens = dialogue_tokens
        self.model_hash = weights_hash(language.model)

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
            means.append(table(ids[kinds != PADDING]).float().mean(dim=0))
        return normalize(torch.stack(means), dim=-1)

    def no_pictures(self, records: int) -> Float[Tensor, "n 0 width"]:
        """Return what stands for the pictures of so many records: no parts."""
        return torch.zeros(records, 0, self.language.width)
