"""The frozen language model behind pictures, as trainers see it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from privaudit.tunable import Tunable, Tuning
from privaudit.words import Words


@runtime_checkable
class LanguageModel(Tunable, Protocol):
    """A frozen language model that may read pictures as tokens.

    Several models are asked at once: k of them, which differ by what is added.
    """

    @property
    def vocabulary(self) -> int:
        """How many logits there are at each position."""
        ...

    def logits(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: Words,
        tuning: Tuning,
        positions: Int[Tensor, " p"] | None = None,
    ) -> Float[Tensor, "k rows p vocabulary"]:
        """Return the logits of the next token, differentiable in what is added.

        Args:
            tokens: The pictures.
            words: [k, rows, length].
            tuning: What each model adds.
            positions: Where logits are wanted; None is everywhere.
        """
        ...

    def generate(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: Words,
        tuning: Tuning,
        longest: int,
    ) -> list[list[str]]:
        """Return what each model says to each prompt, greedily.

        Args:
            tokens: The pictures.
            words: [k, rows, length], prompts only.
            tuning: What each model adds.
            longest: Tokens at most.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special ones."""
        ...
