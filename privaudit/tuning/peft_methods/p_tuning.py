"""P-tuning: soft prompts that come out of a small LSTM."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.prompt_encoder import encoded, prompt_width, started


@PEFT_METHODS.register("p-tuning")
@dataclass(frozen=True)
class PTuning:
    """Vectors in front of the input, made by a bidirectional LSTM and a perceptron.

    All of it is trained and sent. At m vectors of the model's width d, an LSTM of width
    h that reads vectors of width d', it has m d' + 8 h (d' + h + 2) + 2 h (2 h + 1) +
    (2 h + 1) d numbers, and a soft prompt m d. So a narrow d' alone saves nothing: the
    perceptron's last layer has to be narrower than the prompt is long, 2 h + 1 < m.

    Source: Liu et al., "GPT understands, too", 2021, section 3.2; peft's
    ``PromptEncoderConfig`` with its LSTM, which has d' = d only; a narrow d' is of
    "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", section 2.1, item 3.

    Attributes:
        options: ``virtual_tokens``, ``encoder_width`` h and ``embedding_width`` d'
            count.
    """

    options: MechanismOptions

    def config(self, model: Tunable) -> Any:
        """Return peft's ``PromptEncoderConfig``, which has no place for a narrow d'."""
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
        return started(self._encoder, self.config(model), stream)

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return what each model's LSTM makes."""
        return Tuning(prompt=encoded(self._encoder, self.config(model), parameters))

    def _encoder(self, config: Any) -> nn.Module:
        encoder: nn.Module = import_peft().PromptEncoder(config)
        width, hidden = self.options.embedding_width, config.encoder_hidden_size
        if width:
            encoder.embedding = nn.Embedding(config.num_virtual_tokens, width)
            encoder.lstm_head = nn.LSTM(
                width, hidden, bidirectional=True, batch_first=True
            )
        return encoder
