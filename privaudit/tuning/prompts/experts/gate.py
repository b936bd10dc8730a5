"""Gates over prompt experts: from their text features to one picture's logits.

The local expert comes first, the others after it. All of it is stacked over clients:
every client has its own gate, and no client's numbers reach another's.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.streams import Stream
from privaudit.core.tensors import Stacked

GateScale = float | Literal["sqrt"]
PARTS = ("query", "key", "value", "output")


def gate_size(gate_dim: int, dim: int) -> int:
    """Return the size of a pooled feature: ``gate_dim``, or all of a smaller feature.

    Raises:
        ConfigError: Features cannot be pooled to that size.

    Example:
        >>> gate_size(128, 512), gate_size(128, 64)
        (128, 64)
    """
    size = min(gate_dim, dim)
    if dim % size:
        fits = [n for n in range(1, dim + 1) if dim % n == 0 and n >= 32]
        raise ConfigError(
            f"gate_dim = {gate_dim} was requested, but pooling takes every n-th of "
            f"{dim} features. Use one of {', '.join(map(str, fits))}."
        )
    return size


def pool(features: Float[Tensor, "*rest d"], size: int) -> Float[Tensor, "*rest g"]:
    """Return every (d / size)-th feature, without parameters, not normalised again."""
    return features[..., :: features.shape[-1] // size]


def start_attention(size: int, stream: Stream) -> dict[str, Tensor]:
    """Return four linear layers, uniform in +-1/sqrt(size) as torch begins them."""
    layers: dict[str, Tensor] = {}
    for part in PARTS:
        layers |= _linear(part, size, size, stream)
    return layers


def start_linear(size: int, experts: int, stream: Stream) -> dict[str, Tensor]:
    """Return one linear layer from a pooled picture to every expert's weight."""
    return _linear("share", experts, size, stream)


def _linear(part: str, outputs: int, inputs: int, stream: Stream) -> dict[str, Tensor]:
    bound = 1 / math.sqrt(inputs)

    def draw(*shape: int) -> Tensor:
        return (2 * stream.uniform_tensor(shape) - 1) * bound

    return {f"{part}_weight": draw(outputs, inputs), f"{part}_bias": draw(outputs)}


def attention(
    gate: Stacked,
    images: Float[Tensor, "k b g"],
    experts: Float[Tensor, "k c e g"],
    *,
    heads: int,
    scale: GateScale,
) -> Float[Tensor, "k heads b c e"]:
    """Return each head's attention of every picture to each class's experts.

    Sums to 1 over experts. One gate serves all classes.

    Args:
        gate: As :func:`start_attention` makes it, stacked.
        images: Pooled image features: the queries.
        experts: Pooled text features: the keys.
        heads: At the most: the greatest common divisor with the gate's size is taken.
        scale: What scores are multiplied by; "sqrt": 1 / sqrt(size of a head).
    """
    queries = _split(_apply(gate, "query", images), heads)
    keys = _split(_apply(gate, "key", experts.flatten(1, 2)), heads)
    factor = queries.shape[-1] ** -0.5 if scale == "sqrt" else scale
    scores = factor * queries @ keys.mT
    return scores.unflatten(-1, experts.shape[1:3]).softmax(dim=-1)


def attention_match(
    gate: Stacked,
    images: Float[Tensor, "k b g"],
    experts: Float[Tensor, "k c e g"],
    *,
    heads: int,
    scale: GateScale,
) -> Float[Tensor, "k b c"]:
    """Return the products of pooled pictures with the mixture's text features.

    The mixture sum_e a_e v_e, put through the output layer W and multiplied by a
    picture f, is sum_e a_e <W^T f, v_e> head by head: so no text feature is made for
    each picture and class, only one number for each expert.

    Source: Luo et al., "Mixture of experts made personalized: federated prompt learning
    for vision-language models", ICLR 2025, equation 11.
    """
    shares = attention(gate, images, experts, heads=heads, scale=scale)
    values = _split(_apply(gate, "value", experts.flatten(1, 2)), heads)
    projected = _split(images @ gate["output_weight"], heads)
    matches = (projected @ values.mT).unflatten(-1, experts.shape[1:3])
    constant = (images * gate["output_bias"].unsqueeze(1)).sum(dim=-1)
    return (shares * matches).sum(dim=(1, 4)) + constant.unsqueeze(-1)


def linear_match(
    gate: Stacked,
    images: Float[Tensor, "k b d"],
    experts: Float[Tensor, "k c e d"],
    size: int,
) -> Float[Tensor, "k b c"]:
    """Return the products of pictures with text features mixed by a linear layer.

    The layer sees the pooled picture; its outputs are the weights of experts after a
    softmax, the same for all classes. It has a fixed number of them: fewer experts use
    the first ones, and of more the last are left out.

    Source: Luo et al., section 3.3 and table 7; Shazeer et al., "Outrageously large
    neural networks", ICLR 2017, without noise or sparsity.
    """
    count = min(len(gate["share_bias"][0]), experts.shape[2])
    scores = _apply(gate, "share", pool(images, size))[..., :count]
    matches = torch.einsum("kbd,kced->kbce", images, experts[:, :, :count])
    return (scores.softmax(dim=-1).unsqueeze(2) * matches).sum(dim=-1)


def linear_shares(
    gate: Stacked, images: Float[Tensor, "k b d"], experts: int, size: int
) -> Float[Tensor, "k b e"]:
    """Return the weight that a linear gate gives each expert; 0 to those left out."""
    scores = _apply(gate, "share", pool(images, size))[..., :experts]
    shares = scores.softmax(dim=-1)
    return torch.nn.functional.pad(shares, (0, experts - shares.shape[-1]))


def gate_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gate's tensors among others, under their own names.

    Example:
        >>> gate_part({"context": torch.ones(1), "gate/bias": torch.zeros(1)})
        {'bias': tensor([0.])}
    """
    return {
        name.removeprefix("gate/"): tensor
        for name, tensor in tensors.items()
        if name.startswith("gate/")
    }


def named_gate(gate: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a gate's tensors under names that tell them from others."""
    return {f"gate/{name}": tensor for name, tensor in gate.items()}


def _apply(
    gate: Stacked, part: str, features: Float[Tensor, "k n inputs"]
) -> Float[Tensor, "k n outputs"]:
    return features @ gate[f"{part}_weight"].mT + gate[f"{part}_bias"].unsqueeze(1)


def _split(
    features: Float[Tensor, "k n g"], heads: int
) -> Float[Tensor, "k heads n part"]:
    parts = math.gcd(heads, features.shape[-1])
    return features.unflatten(-1, (parts, -1)).transpose(1, 2)
