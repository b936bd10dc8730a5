"""Prefix tuning: learned keys and values in front of every layer's own."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Prefix, Site, Tunable, Tuning
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.prompt_encoder import encoded, started


@PEFT_METHODS.register("prefix")
@dataclass(frozen=True)
class PrefixTuning:
    """Keys and values in front of those of every layer of self-attention.

    In an encoder-decoder both halves get some: peft gives the decoder's only.

    Source: Li, Liang, "Prefix-tuning: optimizing continuous prompts for generation",
    ACL 2021, section 4.2; peft's ``PrefixTuningConfig`` and its order of numbers.

    Attributes:
        options: ``virtual_tokens``, ``projected`` and ``encoder_width`` count.
    """

    options: MechanismOptions

    def config(self, model: Tunable) -> Any:
        """Return peft's ``PrefixTuningConfig``."""
        site = _one_size(model)
        return import_peft().PrefixTuningConfig(
            num_virtual_tokens=self.options.virtual_tokens,
            token_dim=site.heads * site.width,
            num_transformer_submodules=1,
            num_attention_heads=site.heads,
            num_layers=len(model.sites),
            encoder_hidden_size=self.options.encoder_width,
            prefix_projection=self.options.projected,
        )

    def start(self, model: Tunable, stream: Stream) -> Tensors:
        """Return the encoder's parameters as peft initialises them."""
        return started(import_peft().PrefixEncoder, self.config(model), stream)

    def tuning(self, model: Tunable, parameters: Stacked) -> Tuning:
        """Return each model's keys and values by site."""
        encoder = import_peft().PrefixEncoder
        flat = encoded(encoder, self.config(model), parameters)
        return Tuning(prefix=by_site(flat, model))


def by_site(
    flat: Float[Tensor, "k tokens numbers"], model: Tunable
) -> dict[str, Prefix]:
    """Cut peft's rows of numbers into keys and values: layer by layer, keys first."""
    site = _one_size(model)
    shape = (len(model.sites), 2, site.heads, site.width)
    parts = flat.unflatten(2, shape).permute(2, 3, 0, 4, 1, 5)
    return {n: (part[0], part[1]) for n, part in zip(model.sites, parts, strict=True)}


def _one_size(model: Tunable) -> Site:
    sizes = set(model.sites.values())
    if len(sizes) == 1:
        return sizes.pop()
    raise ConfigError(
        "Prefix tuning needs layers of self-attention of one size that transformers "
        f"lets a prefix into, and this model has {len(model.sites)} of {len(sizes)} "
        "sizes. Use another PEFT method, such as lora."
    )
