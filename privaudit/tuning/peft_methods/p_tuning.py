"""P-tuning: soft prompts that come out of a small LSTM."""

from dataclasses import dataclass
from typing import Any

from privaudit.core.streams import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.prompt_encoder import encoded, prompt_width, started


@PEFT_METHODS.register("p-tuning")
@dataclass(frozen=True)
class PTuning:
    """Vectors in front of the input, made by a bidirectional LSTM and a perceptron.

    The LSTM is trained and sent as well, and has many more numbers than the vectors
    that it makes: it eases training, it does not save bytes.

    Source: Liu et al., "GPT understands, too", 2021, section 3.2; peft's
    ``PromptEncoderConfig`` with its LSTM.

    Attributes:
        options: ``virtual_tokens`` and ``encoder_width`` count.
    """

    options: MechanismOptions

    def config(self, model: Tunable) -> Any:
        """Return peft's ``PromptEncoderConfig``.

        Raises:
            ConfigError: The model takes no prompt.
        """
        return import_peft().PromptEncoderConfig(
            num_virtual_tokens=self.options.virtual_tokens,
            token_dim=prompt_width(model),
            num_transformer_submodules=1,
            encoder_reparameterization_type="LSTM",
            encoder_hidden_size=self.options.encoder_width,
            encoder_dropout=0.0,
            encoder_num_layers=1,
        )

    def start(self, model: Tunable, stream: Stream) -> Tensors:
        """Return the encoder's parameters as peft initialises them."""
        return started(import_peft().PromptEncoder, self.config(model), stream)

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return what each model's LSTM makes."""
        encoder = import_peft().PromptEncoder
        return Tuning(prompt=encoded(encoder, self.config(model), parameters))
