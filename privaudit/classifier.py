"""The frozen classifier behind prompts, as trainers see it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from privaudit.errors import ConfigError
from privaudit.tunable import Tower


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
        load_tower: Gives the transformer behind the logits, for those who tune it;
            None where it cannot be tuned.
    """

    prompts: Prompts
    logit_scale: float
    zero_shot: Float[Tensor, "classes dim"]
    load_tower: Callable[[], Tower] | None = None

    @cached_property
    def tower(self) -> Tower:
        """The transformer behind the logits, loaded when first asked for.

        Raises:
            ConfigError: It cannot be tuned.
        """
        if self.load_tower is None:
            raise ConfigError(
                "This model's transformer cannot be tuned. Take tiny-clip, or a model "
                "of transformers."
            )
        return self.load_tower()
