"""Ideal secure sum: what a protocol reveals, and nothing else."""

from collections.abc import Iterator, Sequence
from itertools import chain

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors


def secure_sum(
    messages: Sequence[Tensors], others: Tensors | None = None
) -> dict[str, Tensor]:
    """Return the sum of each tensor over all messages.

    This is the *function* that a protocol such as that of Bonawitz et al., "Practical
    secure aggregation for privacy-preserving machine learning", CCS 2017, computes. It
    is a model of one: nothing here is encrypted, nobody drops out, and the messages
    were there to be read; ``privaudit_labs.secure_aggregation`` runs the protocol
    itself. Summed in float64 in the order given, then cast back, so
    that repeated calls give the same bytes.

    Args:
        messages: One per client. A tensor that a client does not send counts as
            zeros; in a protocol it would send masked ones.
        others: Float64 sums of the messages before these, of :func:`exact_sum`; they
            hold no other names.

    Raises:
        ConfigError: There is no message, or the shapes of one tensor differ.
    """
    if not messages:
        raise ConfigError("There is no message to sum. Pass at least one.")
    return {
        name: total.to(dtype)
        for name, (total, dtype) in _sums(messages, others or {}).items()
    }


def exact_sum(messages: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return the sums in float64, as :func:`secure_sum` takes them to go on."""
    return {name: total for name, (total, _) in _sums(messages, {}).items()}


def _sums(
    messages: Sequence[Tensors], others: Tensors
) -> dict[str, tuple[Tensor, torch.dtype]]:
    names = dict.fromkeys(name for message in messages for name in message)
    return {
        name: _sum(name, (m[name] for m in messages if name in m), others.get(name))
        for name in names
    }


def _sum(
    name: str, tensors: Iterator[Tensor], others: Tensor | None
) -> tuple[Tensor, torch.dtype]:
    first = next(tensors)  # one by one: they may come from a disk
    total = torch.zeros_like(first, dtype=torch.float64)
    if others is not None:
        total += others
    for number, tensor in enumerate(chain([first], tensors)):
        if tensor.shape != total.shape:
            raise ConfigError(
                f"A secure sum needs equal shapes. The first {name!r} is "
                f"{tuple(total.shape)}, number {number} {tuple(tensor.shape)}. Pad "
                "them, or send weights apart."
            )
        total += tensor
    return total, first.dtype
