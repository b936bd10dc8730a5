"""PEFT methods: what is learned about a frozen transformer, and where it goes."""

from collections.abc import Callable
from typing import Annotated, Any, Protocol, runtime_checkable

import pydantic.dataclasses
from pydantic import Field

from privaudit.core.registry import Registry
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.tuning.optimiser import ADDED

__all__ = ["PEFT_METHODS", "MechanismOptions", "PeftMethod"]


@pydantic.dataclasses.dataclass(frozen=True)
class MechanismOptions:
    """The parameters of all PEFT methods; each takes those that it has.

    Attributes:
        virtual_tokens: Length of a prompt or a prefix, in vectors.
        rank: Rank of every LoRA pair.
        lora_alpha: Scaling: the update is multiplied by lora_alpha / rank.
        encoder_width: Hidden width of P-tuning's LSTM, or of a prefix' projection.
        projected: Whether a prefix is the output of a two-layer MLP.
        embedding_width: Width of what P-tuning's LSTM reads; 0 takes the model's.
    """

    virtual_tokens: Annotated[int, Field(ge=1)] = 8
    rank: Annotated[int, Field(ge=1)] = 8
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    encoder_width: Annotated[int, Field(ge=1)] = 32
    projected: bool = False
    embedding_width: Annotated[int, Field(ge=0), ADDED] = 0


@runtime_checkable
class PeftMethod(Protocol):
    """What is learned about a frozen transformer."""

    def config(self, model: Tunable) -> Any:
        """Return peft's configuration of it for this model; None where peft has none.

        Raises:
            ConfigError: The model has no place for it.
        """

    def start(self, model: Tunable, stream: Stream) -> Tensors:
        """Return the parameters before training; equal streams, equal numbers.

        Raises:
            ConfigError: The model has no place for it.
        """

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return what k models with these parameters add, differentiable in them."""


PEFT_METHODS: Registry[Callable[[MechanismOptions], PeftMethod]] = Registry(
    "PEFT method", "privaudit.tuning.peft_methods"
)
"""PEFT methods by name."""
