"""peft's modules that make prompts, run for several models with own parameters."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.core.devices import CPU, here
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked
from privaudit.models.interfaces import Tunable

Build = Callable[[Any], nn.Module]
"""From a configuration of peft's to a module."""
PLAIN = "embedding.weight"
"""Where a module has this parameter only, its prompt is that parameter."""


def prompt_width(model: Tunable) -> int:
    """Return the width of a prompt's vectors.

    Raises:
        ConfigError: The model takes no prompt.
    """
    if model.width:
        return model.width
    raise ConfigError(
        "A prompt stands in front of all tokens, and this model's layers see windows of "
        "them. Use another PEFT method, such as lora."
    )


def started(build: Build, config: Any, stream: Stream) -> dict[str, Tensor]:
    """Return a module's parameters as peft initialises them, seeded by our stream.

    They are public: torch's generator keeps 32 bits of a seed. It is the CPU's: a
    device's own draws other numbers.
    """
    seed, device = int(stream.below(2**31, 1)[0]), here()
    with torch.random.fork_rng(devices=[]), CPU:
        torch.manual_seed(seed)
        module = build(config)
    return {n: t.detach().to(device) for n, t in module.named_parameters()}


def encoded(
    build: Build, config: Any, parameters: Stacked
) -> Float[Tensor, "k tokens width"]:
    """Return what the module gives for each of its tokens, one model after the other.

    Differentiable in the parameters.
    """
    if set(parameters) == {PLAIN}:
        return parameters[PLAIN]
    with torch.device("meta"):
        module = build(config)
    first = next(iter(parameters.values()))
    tokens = torch.arange(config.num_virtual_tokens, device=first.device)[None]
    outputs = [
        torch.func.functional_call(
            module, {name: t[number] for name, t in parameters.items()}, (tokens,)
        )
        for number in range(len(first))
    ]
    return torch.cat(outputs)
