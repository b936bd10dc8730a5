"""Towers that make one vector of each record, and tell classes apart by it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.tensors import at_least_float32
from privaudit.datasets.dialogues import TokenSequences
from privaudit.models.interfaces import Head, Tuning
from privaudit.models.transformers.tuned_modules import TunedModules

POSITIONS_AT_ONCE = 2**15  # of all models together, where nothing is learned


class RowTower(TunedModules):
    """What towers have in common that read records, not class names.

    Attributes:
        head: The head that each model trains for itself; None where nothing is.
    """

    head: Head | None = None

    def rows_of(
        self, tokens: Tensor | None, words: TokenSequences | None
    ) -> Tensor | TokenSequences:
        """Return what the tower reads of records.

        Raises:
            ConfigError: They do not have it.
        """
        raise NotImplementedError

    def logits(
        self,
        features: Float[Tensor, "k rows d"],
        tokens: Float[Tensor, "k rows parts width"] | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Float[Tensor, "k rows classes"]:
        """Return what each model says to the records."""
        return self.scores(self.vectors(self.rows_of(tokens, words), tuning), tuning)

    def scores(
        self, vectors: Float[Tensor, "k rows width"], tuning: Tuning
    ) -> Float[Tensor, "k rows classes"]:
        """Return what each model's own head gives; zeros where none was trained."""
        assert self.head is not None
        if not tuning.head:
            return vectors.new_zeros(*vectors.shape[:2], self.head.classes)
        weight, bias = (tuning.head[n].to(vectors.dtype) for n in ("weight", "bias"))
        return torch.einsum("krw,kcw->krc", vectors, weight) + bias[:, None]

    def pooled(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        """Return each record's vector under each model, none with own weights."""
        raise NotImplementedError

    def vectors(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        """Return each record's vector under each model, of [k, rows, positions, ...].

        Where no gradient is asked for, records are taken some at a time.
        """
        if not tuning.weights:
            return self._in_parts(rows, tuning)
        return self.each_alone(
            tuning, lambda n, rest: self._in_parts(rows[slice(n, n + 1)], rest)
        )

    def _in_parts(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        shape = (rows.ids if isinstance(rows, TokenSequences) else rows).shape
        models, count, positions = shape[:3]
        if torch.is_grad_enabled():
            return at_least_float32(self.pooled(rows, tuning))
        size = max(1, POSITIONS_AT_ONCE // max(1, models * positions))
        parts = [
            at_least_float32(self.pooled(rows[:, first : first + size], tuning))
            for first in range(0, max(1, count), size)
        ]
        return torch.cat(parts, dim=1)


def without_pooler(model: Any) -> Any:
    """Take the pooler out: no head here reads it, and some come with a random one."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
