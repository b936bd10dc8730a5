"""Targets: the linear layers of a model that may be changed, found as peft finds them.

peft itself does the search, on a copy of the model that has no memory behind its
weights: what is changed here is then what peft would change, and an adapter that is
written for peft fits.
"""

import copy
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import nn, torch
from privaudit.models.hugging_face import import_peft, import_transformers
from privaudit.models.interfaces import TunableLayer

TargetNames = Literal["all-linear", "attention"] | Sequence[str]
_ATTENTION = re.compile("attn|attention", re.IGNORECASE)
_LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


def linear_targets(
    model: nn.Module, names: TargetNames, part: str = ""
) -> dict[str, TunableLayer]:
    """Return the layers that peft's LoRA would change, in the model's own order.

    Args:
        model: A model of transformers, frozen or not.
        names: "all-linear", or "attention" for those inside of attention, or names or
            endings of names, such as "q_proj". The model's head, which gives the
            logits, never counts.
        part: The language model's name inside a model that has other parts; layers of
            the other parts do not count.

    Raises:
        ConfigError: A name fits no layer, or fits one that is not linear.
    """
    of_attention = names == "attention"
    found = _chosen_by_peft(model, "all-linear" if of_attention else names, part)
    targets = [
        name
        for name in found
        if is_part(name, part) and (not of_attention or _ATTENTION.search(name))
    ]
    for wanted in () if isinstance(names, str) else names:
        if not any(f".{name}".endswith(f".{wanted}") for name in targets):
            raise _no_such_layer(model, wanted, part)
    if not targets:
        raise _no_such_layer(model, _joined(names), part)
    return dict(_described(model, targets, part))


def is_part(name: str, part: str) -> bool:
    """Say whether a module of that name lies inside a part; "" is the whole."""
    return not part or name.startswith(f"{part}.")


def is_transposed(module: nn.Module) -> bool:
    """Say whether it is GPT-2's linear layer, whose weight is [inputs, outputs]."""
    return isinstance(module, import_transformers().pytorch_utils.Conv1D)


def _chosen_by_peft(model: Any, names: TargetNames, part: str) -> list[str]:
    peft = import_peft()
    wanted = names if isinstance(names, str) else list(names)
    skeleton = _without_memory(model)
    options = peft.LoraConfig(r=1, target_modules=wanted)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")  # Conv1D, which is handled here
            peft.inject_adapter_in_model(options, skeleton)
    except ValueError as error:
        raise _no_such_layer(model, _joined(names), part) from error
    layer_class = peft.tuners.lora.LoraLayer
    modules = skeleton.named_modules()
    head = name_of(model, model.get_output_embeddings())
    return [n for n, m in modules if isinstance(m, layer_class) and n != head]


def _without_memory(model: nn.Module) -> nn.Module:
    """Return a copy whose weights have shapes and no content."""
    shapes: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        shapes[id(parameter)] = nn.Parameter(empty, requires_grad=False)
    for buffer in model.buffers():
        shapes[id(buffer)] = torch.empty_like(buffer, device="meta")
    skeleton: Any = copy.deepcopy(model, shapes)
    # Packed weights have lost what peft would copy: a linear layer is enough for it.
    skeleton.is_loaded_in_4bit = skeleton.is_loaded_in_8bit = False
    return cast(nn.Module, skeleton)


def name_of(model: nn.Module, wanted: object) -> str | None:
    """Return the name of a module inside a model; None if it is not there."""
    return next((name for name, m in model.named_modules() if m is wanted), None)


def _described(
    model: nn.Module, names: Iterable[str], part: str
) -> Iterable[tuple[str, TunableLayer]]:
    layer = 0  # also of a projection in front of the first layer
    for name in names:
        module: Any = model.get_submodule(name)
        if not _is_linear(module):
            raise ConfigError(
                f"{name} is a {type(module).__name__}, and only linear layers can be "
                f"changed. There are: {_joined(_endings(model, part))}."
            )
        if number := _LAYER_NUMBER.search(name.removeprefix(part)):
            layer = int(number[1])
        outputs, inputs = (
            reversed(module.weight.shape)
            if is_transposed(module)  # quantised weights have another shape
            else (module.out_features, module.in_features)
        )
        yield name, TunableLayer(inputs, outputs, layer)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_transposed(module)


def _no_such_layer(model: nn.Module, wanted: str, part: str) -> ConfigError:
    return ConfigError(
        f"No linear layer of the language model fits {wanted!r}. There are: "
        f"{_joined(_endings(model, part))}. Name some of them, or say all-linear or attention."
    )


def _endings(model: Any, part: str) -> list[str]:
    head = name_of(model, model.get_output_embeddings())
    linear = {
        name.rpartition(".")[2]: None
        for name, module in model.named_modules()
        if _is_linear(module) and is_part(name, part) and name != head
    }
    return list(linear)


def _joined(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)
