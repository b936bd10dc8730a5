"""Low-rank changes to linear layers, stacked over models.

A layer's pair is called ``NAME.A`` [k, rank, inputs] and ``NAME.B`` [k, outputs, rank];
the change is B A x times a scale. FedPara's second pair is ``NAME.A2`` and ``NAME.B2``.

Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022,
section 4.1; Hyeon-Woo, Ye-Bin, Oh, "FedPara: low-rank Hadamard product for
communication-efficient federated learning", ICLR 2022, section 2.3.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.streams import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.models.interfaces import Change, TunableLayer

Targets = Mapping[str, TunableLayer]


def start_pairs(
    targets: Targets, rank: int, stream: Stream, suffix: str = ""
) -> dict[str, Tensor]:
    """Return A drawn from U(-1/√inputs, 1/√inputs), and B of zeros, for each layer.

    So that nothing is changed before the first step.
    """
    pairs: dict[str, Tensor] = {}
    for name, target in targets.items():
        draw = stream.uniform_tensor((rank, target.inputs))
        pairs[f"{name}.A{suffix}"] = (2 * draw - 1) * target.inputs**-0.5
        pairs[f"{name}.B{suffix}"] = torch.zeros(target.outputs, rank)
    return pairs


def factor_of(name: str) -> str:
    """Return which factor a tensor is: "A", "B", "A2" or "B2"."""
    return name.rpartition(".")[2]


def layer_of(targets: Targets, name: str) -> int:
    """Return the transformer layer that a tensor belongs to."""
    return targets[name.rpartition(".")[0]].layer


def changes_of(targets: Targets, models: Stacked, scale: float) -> dict[str, Change]:
    """Return what each model adds to each layer.

    Raises:
        ConfigError: A layer has no pair: it would silently be as it was.
    """
    lacking = [name for name in targets if f"{name}.A" not in models]
    if lacking:
        raise ConfigError(
            f"A model has no adapters for {len(lacking)} of {len(targets)} layers, "
            f"such as {lacking[0]}. Give all of them."
        )
    return {name: _change(models, name, scale) for name in targets}


def _change(models: Stacked, name: str, scale: float) -> Change:
    down, up = models[f"{name}.A"], models[f"{name}.B"]
    if f"{name}.A2" in models:
        return _dense(_hadamard(models, name) * scale)

    def low_rank(x: Float[Tensor, "k rows inputs"]) -> Float[Tensor, "k rows outputs"]:
        return scale * (x @ down.mT @ up.mT)

    return low_rank


def _dense(weight: Float[Tensor, "k outputs inputs"]) -> Change:
    def dense(x: Float[Tensor, "k rows inputs"]) -> Float[Tensor, "k rows outputs"]:
        return x @ weight.mT

    return dense


def _hadamard(models: Stacked, name: str) -> Float[Tensor, "k outputs inputs"]:
    """Return (B A) ∘ (1 + B2 A2).

    With B2 = 0 that is the first pair alone. Without the 1 and with B = 0 or B2 = 0 no
    gradient would ever flow.
    """
    shared = models[f"{name}.B"] @ models[f"{name}.A"]
    return shared * (1 + models[f"{name}.B2"] @ models[f"{name}.A2"])


def weight_changes(
    targets: Targets, model: Tensors, scale: float
) -> Iterable[Float[Tensor, "outputs inputs"]]:
    """Yield one model's change of each layer's weights; zeros for no model."""
    stacked = {name: tensor.unsqueeze(0) for name, tensor in model.items()}
    for name, target in targets.items():
        if f"{name}.A2" in stacked:
            yield scale * _hadamard(stacked, name)[0]
        elif stacked:
            yield scale * (model[f"{name}.B"] @ model[f"{name}.A"])
        else:
            yield torch.zeros(target.outputs, target.inputs)


def chosen(tensors: Tensors, keep: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors whose names are to be kept."""
    return {name: tensor for name, tensor in tensors.items() if keep(name)}
