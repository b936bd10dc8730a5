"""What a secure aggregation protocol reveals: sums, and nothing else."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from privaudit.errors import ConfigError


def secure_sum(messages: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of each tensor over all messages.

    This is the *function* that a protocol such as that of Bonawitz et al., "Practical
    secure aggregation for privacy-preserving machine learning", CCS 2017, computes. It
    is a model of one: nothing here is encrypted, nobody drops out, and the messages
    were there to be read. Summed in float64 in the order given, then cast back, so
    that repeated calls give the same bytes.

    Args:
        messages: One per client, with the same names and shapes.

    Raises:
        ConfigError: There is no message, or names or shapes differ.
    """
    if not messages:
        raise ConfigError("There is no message to sum. Pass at least one.")
    signatures = [_signature(message) for message in messages]
    for number, signature in enumerate(signatures):
        if signature != signatures[0]:
            raise ConfigError(
                f"A secure sum needs equal messages. Message 0 holds {signatures[0]}, "
                f"message {number} holds {signature}. Pad them, or send weights apart."
            )
    return {name: _sum([m[name] for m in messages]) for name in messages[0]}


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return total.to(tensors[0].dtype)


def _signature(message: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(message[name].shape) for name in sorted(message)}
