"""The frozen language model behind pictures, as trainers see it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from privaudit.words import Words

Change = Callable[[Tensor], Tensor]
"""[k rows inputs] -> [k rows outputs]: added to what a frozen linear layer gives."""


@dataclass(frozen=True)
class Target:
    """One frozen linear layer that may be changed.

    Attributes:
        inputs: Width of what goes in.
        outputs: Width of what comes out.
        layer: The transformer layer it is in, counted from 0 at the bottom.
    """

    inputs: int
    outputs: int
    layer: int


@runtime_checkable
class LanguageModel(Protocol):
    """A frozen causal language model that reads pictures as tokens.

    Several models are asked at once: k of them, which differ by what is added to
    their linear layers.
    """

    @property
    def targets(self) -> Mapping[str, Target]:
        """The linear layers that may be changed, by name, in a fixed order."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many logits there are at each position."""
        ...

    def logits(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: Words,
        changes: Mapping[str, Change],
        positions: Int[Tensor, " p"] | None = None,
    ) -> Float[Tensor, "k rows p vocabulary"]:
        """Return the logits of the next token, differentiable in the changes.

        Args:
            tokens: The pictures.
            words: [k, rows, length].
            changes: By target; a target without one is as it was.
            positions: Where logits are wanted; None is everywhere.
        """
        ...

    def generate(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: Words,
        changes: Mapping[str, Change],
        longest: int,
    ) -> list[list[str]]:
        """Return what each model says to each prompt, greedily.

        Args:
            tokens: The pictures.
            words: [k, rows, length], prompts only.
            changes: By target.
            longest: Tokens at most.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special ones."""
        ...
