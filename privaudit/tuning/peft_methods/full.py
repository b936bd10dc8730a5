"""Full fine-tuning: every weight of the transformer is learned."""

from dataclasses import dataclass
from typing import Any

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions


@PEFT_METHODS.register("full")
@dataclass(frozen=True)
class Full:
    """No prompt: the baseline against which prompts save bytes.

    Models with all weights of their own cannot share a pass; they run one by one.

    Attributes:
        options: None of them counts.
    """

    options: MechanismOptions

    def config(self, model: Tunable) -> Any:
        """Return None: peft is for less than all weights."""
        return None

    def start(self, model: Tunable, stream: Stream) -> Tensors:
        """Return the frozen model's own weights.

        Raises:
            ConfigError: They are packed into few bits, and cannot be trained.
        """
        if not all(weight.is_floating_point() for weight in model.weights.values()):
            raise ConfigError(
                "All weights were to be trained, and they are packed into few bits. "
                "Leave out --quantise, or train adapters."
            )
        return {n: t.detach().clone().float() for n, t in model.weights.items()}

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return the weights in place of the model's."""
        return Tuning(weights=parameters)
