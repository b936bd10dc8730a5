"""Texts, or pairs of texts, as the tokens of an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Texts
from privaudit.datasets.dialogues import INSTRUCTION, PADDING, TokenSequences
from privaudit.models.transformers.encoder import second_texts


@dataclass(frozen=True)
class TextTokens:
    """Writes texts with the special tokens that the tokenizer puts around them.

    Attributes:
        tokenizer: Of transformers.
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
