"""Towers that make one vector of each record, and classes of that vector."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.tensors import at_least_float32
from privaudit.datasets.dialogues import TokenSequences
from privaudit.models.interfaces import Head, Tuning
from privaudit.models.transformers.tuned_modules import TunedModules

ROWS_AT_ONCE = 64  # through a frozen tower
POSITIONS_AT_ONCE = 2**15  # of all models together, where nothing is learned


class RowTower(TunedModules):
    """What towers have in common that read records, not class names.

    Attributes:
        head: The head that each model trains for itself; None where nothing is.
    """

    head: Head | None = None

    def pooled(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        """Return each record's vector under each model, none with own weights."""
        raise NotImplementedError

    def vectors(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        """Return each record's vector under each model.

        Where no gradient is asked for, records are taken some at a time.

        Args:
            rows: Of all models, [k, rows, positions, ...].
            tuning: What each model adds.
        """
        if not tuning.weights:
            return self._in_parts(rows, tuning)
        return self.each_alone(
            tuning, lambda n, rest: self._in_parts(rows[slice(n, n + 1)], rest)
        )

    def _in_parts(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        models, count, positions = _shape(rows)
        if torch.is_grad_enabled():
            return at_least_float32(self.pooled(rows, tuning))
        size = max(1, POSITIONS_AT_ONCE // max(1, models * positions))
        parts = [
            at_least_float32(self.pooled(rows[:, first : first + size], tuning))
            for first in range(0, max(1, count), size)
        ]
        return torch.cat(parts, dim=1)


def head_logits(
    vectors: Float[Tensor, "k rows width"], head: Head, tuning: Tuning
) -> Float[Tensor, "k rows classes"]:
    """Return what each model's own head gives; zeros where none was trained."""
    if not tuning.head:
        return vectors.new_zeros(*vectors.shape[:2], head.classes)
    weight, bias = tuning.head["weight"], tuning.head["bias"]
    return torch.einsum("krw,kcw->krc", vectors, weight.to(vectors.dtype)) + bias[
        :, None
    ].to(vectors.dtype)


def in_batches(
    encode: Callable[[TokenSequences], Tensor], words: TokenSequences
) -> Float[Tensor, "rows width"]:
    """Return what is computed of some rows at a time, without gradients."""
    starts = range(0, len(words.ids), ROWS_AT_ONCE)
    with torch.no_grad():
        return torch.cat([encode(words[s : s + ROWS_AT_ONCE]) for s in starts])


def _shape(rows: Tensor | TokenSequences) -> tuple[int, int, int]:
    models, count, positions = (
        rows.ids if isinstance(rows, TokenSequences) else rows
    ).shape[:3]
    return models, count, positions
