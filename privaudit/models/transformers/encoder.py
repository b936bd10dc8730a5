"""Tuned encoders of texts, such as BERT's relatives, under a head for classes."""

import inspect
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import PADDING, TokenSequences
from privaudit.models.interfaces import Head, Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.transformers.row_tower import RowTower
from privaudit.models.transformers.tuned_modules import in_front

Pooling = Literal["first", "mean"]


class TextEncoderTower(RowTower):
    """A bidirectional encoder and a linear head.

    A text's vector is the state of its first token, which such models begin each text
    with for that purpose, or the mean over its tokens where the family has none such. A
    prompt stands in front of it. peft's own models for classification take the first
    position as well, and so behind a prompt the prompt's first vector: there the two
    differ, in what the head reads only.

    Args:
        model: Takes ``inputs_embeds``.
        classes: How many the head tells apart.
        pooling: "first" token, or "mean".
        separator: The token that ends the first of two texts, where the model tells
            the two apart; None where it does not.
        targets: As :class:`TunedModules` takes them.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        *,
        pooling: Pooling = "first",
        separator: int | None = None,
        targets: TargetNames = "all-linear",
    ) -> None:
        super().__init__(model, targets)
        self.head = Head(classes, int(self.model.config.hidden_size))
        self.width = int(self._embedding.weight.shape[1])
        longest = getattr(self.model.config, "max_position_embeddings", None)
        self.context = int(longest) - self._first_position if longest else None
        self._pooling, self._separator = pooling, separator
        self._takes = inspect.signature(self.model.forward).parameters

    @cached_property
    def embedding_name(self) -> str:
        """The name, among its weights, of the table with a row for each token."""
        table = self._embedding.weight
        return next(name for name, held in self.weights.items() if held is table)

    def rows_of(
        self, tokens: Tensor | None, words: TokenSequences | None
    ) -> TokenSequences:
        """Return texts, without what is padding in all of them."""
        if words is None:
            raise ConfigError(
                "A model that reads texts was given records without any. Use a data "
                "set of texts, or a model that looks at pictures."
            )
        return words.trimmed()

    def pooled(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows hidden"]:
        """Return each text's vector under each model."""
        assert isinstance(rows, TokenSequences)
        states = self.states(rows, tuning)[:, :, tuning.virtual_tokens :]
        if self._pooling == "first":
            return states[:, :, 0]
        mask = seen(rows).to(states.dtype)[..., None]
        return (states * mask).sum(dim=2) / mask.sum(dim=2)

    def states(
        self, words: TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows longer hidden"]:
        """Return the last layer's state of each vector of the prompt and each token."""
        models, rows, length = words.ids.shape
        if self._relative and tuning.changes and models > 1:
            apart = [
                self.states(words[slice(n, n + 1)], tuning.alone(n, models))
                for n in range(models)
            ]
            return torch.cat(apart)
        front = tuning.virtual_tokens
        self.check_length(length, tuning)
        flat = in_front(tuning.prompt, self._embedding(words.ids)).flatten(0, 1)
        mask = torch.cat([seen(words)[..., :1].expand(-1, -1, front), seen(words)], -1)
        options = self._places(tuning, front + length) | self._types(words, front)
        seen_by_layers = () if self._relative else (models * rows * (front + length),)
        with self.tuned(tuning, models, *seen_by_layers):
            states = self.model(
                inputs_embeds=flat, attention_mask=mask.flatten(0, 1).long(), **options
            ).last_hidden_state
        return states.unflatten(0, (models, rows))

    def run_once(self) -> object:
        """Run the model on three empty tokens."""
        empty = torch.zeros(1, 3, self.width, device=self._embedding.weight.device)
        return self.model(inputs_embeds=empty.to(self._embedding.weight.dtype))

    def _places(self, tuning: Tuning, length: int) -> dict[str, Tensor]:
        """Return the positions of tokens behind a prefix; else the model knows them."""
        if not tuning.skipped_positions or "position_ids" not in self._takes:
            return {}
        first = tuning.skipped_positions + self._first_position
        device = self._embedding.weight.device
        places = torch.arange(first, first + length, device=device)
        return {"position_ids": places[None]}

    def _types(self, words: TokenSequences, front: int) -> dict[str, Tensor]:
        """Say which of two texts tokens are of; peft's prompts are of the first."""
        if self._separator is None:
            return {}
        types = second_texts(words, self._separator)
        types = torch.cat([types[..., :1].expand(-1, -1, front) * 0, types], dim=-1)
        return {"token_type_ids": types.flatten(0, 1)}

    @cached_property
    def _relative(self) -> bool:
        """Whether layers also see embedded distances, once for all rows: DeBERTa's.

        So models that change layers have to run one after the other.
        """
        return any(n.endswith("rel_embeddings") for n, _ in self.model.named_modules())

    @cached_property
    def _first_position(self) -> int:
        """Where the table of positions begins: RoBERTa's relatives leave some out."""
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and isinstance(
                module, nn.Embedding
            ):
                return 0 if module.padding_idx is None else module.padding_idx + 1
        return 0


def seen(words: TokenSequences) -> Bool[Tensor, "*n length"]:
    """Say which positions count; a row of padding keeps one, so that none is empty."""
    mask = words.kinds != PADDING
    mask[..., 0] = True
    return mask


def second_texts(words: TokenSequences, separator: int) -> Int[Tensor, "*n length"]:
    """Return 1 where a token stands behind the first separator, else 0."""
    ends = (words.ids == separator).long()
    behind = (ends.cumsum(dim=-1) - ends) > 0
    return (behind & (words.kinds != PADDING)).long()
