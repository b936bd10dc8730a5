"""Soft prompts: learned vectors in front of the embedded input."""

from dataclasses import dataclass
from typing import Any

from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.prompt_encoder import PLAIN, prompt_width


@PEFT_METHODS.register("soft-prompt")
@dataclass(frozen=True)
class SoftPrompt:
    """Vectors that begin as tokens drawn from the model's vocabulary.

    Source: Lester, Al-Rfou, Constant, "The power of scale for parameter-efficient
    prompt tuning", EMNLP 2021, section 2; peft's ``PromptTuningConfig``.

    Attributes:
        options: Of these ``virtual_tokens`` counts.
    """

    options: MechanismOptions

    def config(self, model: Tunable) -> Any:
        """Return peft's ``PromptTuningConfig``."""
        return import_peft().PromptTuningConfig(
            num_virtual_tokens=self.options.virtual_tokens,
            token_dim=prompt_width(model),
        )

    def start(self, model: Tunable, stream: Stream) -> Tensors:
        """Return embeddings of tokens drawn from the vocabulary."""
        count = self.config(model).num_virtual_tokens
        return {PLAIN: model.start_vectors(count, stream)}

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return the vectors themselves."""
        return Tuning(prompt=parameters[PLAIN])
