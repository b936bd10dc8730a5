"""The frozen classifier behind prompts, as trainers see it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Prompts(Protocol):
    """A frozen text tower, bound to class names.

    Attributes:
        context_tokens: Learned vectors in front of a class name.
        width: Of one such vector.
    """

    @property
    def context_tokens(self) -> int:
        """How many."""
        ...

    @property
    def width(self) -> int:
        """How wide."""
        ...

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return the normalised text features of every class, differentiable."""
        ...


@dataclass(frozen=True)
class Classifier:
    """A frozen CLIP whose prompts can be learned.

    Attributes:
        prompts: The frozen text tower, bound to the class names.
        logit_scale: What cosines are multiplied by, exponentiated.
        zero_shot: Text features of the hand-written prompt.
    """

    prompts: Prompts
    logit_scale: float
    zero_shot: Float[Tensor, "classes dim"]
