"""LoRA: low-rank changes of linear layers."""

from dataclasses import dataclass
from typing import Any

from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.lora import changes_of, start_pairs


@PEFT_METHODS.register("lora")
@dataclass(frozen=True)
class Lora:
    """B A times lora_alpha / rank, added to every target's weights.

    Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022,
    section 4.1; peft's ``LoraConfig``.

    Attributes:
        options: ``rank`` and ``lora_alpha`` count.
    """

    options: MechanismOptions

    def config(self, model: Tunable) -> Any:
        """Return peft's ``LoraConfig``."""
        return import_peft().LoraConfig(
            r=self.options.rank,
            lora_alpha=self.options.lora_alpha,
            target_modules=list(model.targets),
        )

    def start(self, model: Tunable, stream: Stream) -> Tensors:
        """Return one pair for each target, which changes nothing yet."""
        return start_pairs(model.targets, self.options.rank, stream)

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return what each model adds to each target."""
        scale = self.options.lora_alpha / self.options.rank
        return Tuning(changes_of(model.targets, parameters, scale))
