"""What transformers that are tuned to tell classes apart have in common."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.models.frozen_model import FrozenModel
from privaudit.models.interfaces import Classifier, Tower


@dataclass(frozen=True)
class NoPrompts:
    """Stands where a classifier's prompts would, and has none."""

    context_tokens: int = 0
    width: int = 0

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "This model has no prompts before class names: it has a transformer of its "
            "own. Train it with fedpt."
        )


class TunableClassifier(FrozenModel):
    """A frozen transformer that is tuned to tell classes apart."""

    dim: int

    @abstractmethod
    def tower(self, class_names: tuple[str, ...], template: str) -> Tower:
        """Return the transformer behind classes of these names."""

    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int = 0
    ) -> Classifier:
        """Return what trainers see: no prompts, and texts that say nothing."""
        return Classifier(
            NoPrompts(),
            1.0,
            torch.zeros(len(class_names), self.dim),
            partial(self.tower, class_names, template),
        )


def without_pooler(model: Any) -> Any:
    """Take the pooler out: no head here reads it, and some come with a random one."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
