"""What models of others put out: arrays or tensors, logits or probabilities."""

from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from privaudit.core.errors import ConfigError, UnknownNameError

Array = np.ndarray | Tensor
Outputs = Literal["logits", "probabilities"]

ROUNDED = 0.01  # of a sum over classes: half precision, and five digits of a file


def as_tensor(values: Any) -> Shaped[Tensor, "..."]:
    """Return an array, a tensor on any device, or a list, as a tensor on the CPU."""
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.array(values))
    return tensor.detach().cpu()


def as_array(values: Any) -> Shaped[np.ndarray, "..."]:
    """Return a tensor on any device and of any type, or a list, as an array."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    tensor = values.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_logits(values: Any, outputs: Outputs) -> Float[Tensor, "..."]:
    """Return logits: as they are, or the logarithms of probabilities.

    Raises:
        UnknownNameError: ``outputs`` is neither.
        ConfigError: They are not finite, or not what ``outputs`` says: the softmax of
            probabilities would be taken, and hardly tells members from others.
    """
    if outputs not in get_args(Outputs):
        raise UnknownNameError("kind of outputs", outputs, get_args(Outputs))
    tensor = as_tensor(values)
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    if bool(tensor.isnan().any()) or bool((tensor == torch.inf).any()):
        raise ConfigError(
            "The model's outputs hold NaN or infinity. Look for an overflow, and "
            "compute them in float32."
        )
    likely = _are_probabilities(tensor)
    if outputs == "logits" and likely:
        raise ConfigError(
            "Logits were expected, but these look like probabilities: every row is in "
            "[0, 1] and sums to 1. Give the values before the softmax, or set "
            'outputs="probabilities". If they are logits, add 1 to all of them, which '
            "changes no probability."
        )
    if outputs == "probabilities" and not likely:
        raise ConfigError(
            'outputs="probabilities" was said, and there are rows that do not lie in '
            '[0, 1] or do not sum to 1. Leave it out for logits, or say "logits".'
        )
    return tensor.double().log() if outputs == "probabilities" else tensor


def _are_probabilities(values: Float[Tensor, "... classes"]) -> bool:
    if not values.ndim or not values.numel() or values.min() < 0 or values.max() > 1:
        return False
    return bool(((values.double().sum(dim=-1) - 1).abs() <= ROUNDED).all())
