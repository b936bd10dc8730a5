"""Precisions of weights: which one a device is faster in, and packing into 4 or 8 bits.

Linear layers are packed by bitsandbytes. Adapters beside them are trained in float32,
and the packed weights stay as they are.

Source: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: efficient finetuning of
quantized LLMs", NeurIPS 2023, section 3 (4 bits: NormalFloat, scales packed, too);
Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8()", NeurIPS 2022, section 2 (8 bits).
"""

import importlib
import logging
import time
from functools import cache
from typing import Any, Literal

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import install_line
from privaudit.core.lazy_torch import functional, nn, torch
from privaudit.models.interfaces import Precision

FASTER_OF: tuple[Precision, ...] = ("float32", "bfloat16")
_ROWS, _WIDTH, _TIMES = 256, 768, 5  # a layer of a small transformer; the best counts


@cache
def seconds_of(device: torch.device) -> dict[str, float]:
    """Return how long a linear layer of a transformer takes in each precision.

    float16 is not among them: its range is small for gradients.
    """
    return {precision: _seconds(precision, device) for precision in FASTER_OF}


def _seconds(precision: Precision, device: torch.device) -> float:
    dtype: torch.dtype = getattr(torch, precision)
    rows = torch.ones(_ROWS, _WIDTH, dtype=dtype, device=device)
    weight = torch.ones(4 * _WIDTH, _WIDTH, dtype=dtype, device=device)
    functional.linear(rows, weight)  # the first sets up kernels
    taken = []
    for _ in range(_TIMES):
        _wait(device)
        begun = time.perf_counter()
        functional.linear(rows, weight)
        _wait(device)
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        module: Any = getattr(torch, device.type)
        module.synchronize()


Bits = Literal["4bit", "8bit"]
"""How many bits a packed weight has."""


def packing(bits: Bits, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what from_pretrained takes, to pack linear layers but the head as it loads.

    8 bits are without LLM.int8()'s columns of outliers, which are those of a whole
    batch: what one model says would depend on rows of others. Layers of 4 bits compute
    in ``dtype``. A packed model cannot be moved from the device it is loaded to.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    try:
        importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigError(
            "Weights of 4 or 8 bits are packed with bitsandbytes, which cannot be "
            f"imported ({error}). Install it: {install_line('quantised')}."
        ) from None
    kind: Any = importlib.import_module("transformers").BitsAndBytesConfig
    if bits == "4bit":
        how = kind(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    else:
        how = kind(load_in_8bit=True, llm_int8_threshold=0.0)
        # One line for each product whose inputs are not in float16 yet.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    return {"quantization_config": how, "device_map": {"": device}}


def keep_differentiable(model: nn.Module) -> None:
    """Let layers of 4 bits compute in the same way with and without gradients.

    On processors with bfloat16 in AVX-512 they pack anew for inference, and no
    gradient passes through them afterwards.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010
