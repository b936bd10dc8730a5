"""A model that is watched as it runs, for how records enter its layers.

It is called as it is. While it runs, every product of an input with one of the watched
weights, by :func:`torch.nn.functional.linear`, a matrix product or a convolution, is
noted, whether the weights stand in modules or in a function.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, linear, unfold
from torch.overrides import TorchFunctionMode

from privaudit.core.devices import CPU
from privaudit.models.layer_factors import LayerFactors

PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
TO_NUMBERS = (Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.__array__)
SET_GRADIENTS = torch._C._set_grad_enabled  # what torch.no_grad() calls
CONVOLVED = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def watch_layers(
    weights: Mapping[str, Tensor],
    records: int,
    loss: Callable[[], Tensor | None],
    until: str | None = None,
) -> dict[str, LayerFactors]:
    """Return how records enter each layer that multiplies by one of some weights.

    Factors are on the CPU. A model that computes outside of torch, or in inference mode,
    shows less: no layers, or inputs alone. Layers whose rows are not those of records are left out.

    Args:
        weights: By name, as the model is asked with; equal copies of them count.
        records: How many the model is asked about.
        loss: Asks the model, and returns the sum of all records' losses, or None.
        until: The layer in front of which the model stops; "" is none. Where it is given,
            inputs alone are noted.
    """
    watch, total = _Watch(weights, until), None
    with torch.set_grad_enabled(until is None), suppress(_Enough), watch:
        total = loss()
    probes = [one.probe for one in watch.passed]
    gradients: Sequence[Tensor | None] = [None] * len(probes)
    if total is not None and total.requires_grad and probes:
        gradients = torch.autograd.grad(total, probes, allow_unused=True)
    found: dict[str, list[LayerFactors]] = {}
    for one, gradient in zip(watch.passed, gradients, strict=True):
        found.setdefault(one.name, []).append(one.factors(gradient))
    joined = {name: _joined(parts, records) for name, parts in found.items()}
    return {name: one for name, one in joined.items() if one is not None}


def _joined(parts: Sequence[LayerFactors], records: int) -> LayerFactors | None:
    """Return one layer's factors, whether it was passed in batches or several times."""
    if sum(len(part.inputs) for part in parts) == records:
        return LayerFactors.join(parts, 0)
    if any(len(part.inputs) % records for part in parts):
        return None
    return LayerFactors.join([_by_record(part, records) for part in parts], 1)


def _by_record(part: LayerFactors, records: int) -> LayerFactors:
    """Return factors with the places of a record beside each other: [n t, d] has them."""

    def split(rows: Tensor) -> Tensor:
        return rows.reshape(records, -1, rows.shape[-1])

    deltas = None if part.deltas is None else split(part.deltas)
    return replace(part, inputs=split(part.inputs), deltas=deltas)


@dataclass(frozen=True)
class _Passed:
    """A product of an input with a watched weight, as it happened."""

    name: str
    bias: str
    is_transposed: bool
    inputs: Tensor
    probe: Tensor
    is_picture: bool

    def factors(self, gradient: Tensor | None) -> LayerFactors:
        inputs = self.inputs.detach().to(CPU)
        if self.is_picture and gradient is not None:
            gradient = gradient.flatten(2).transpose(1, 2)
        inputs = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        if self.bias:
            inputs = torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=2)
        if gradient is not None:
            gradient = gradient.reshape(*inputs.shape[:2], gradient.shape[-1]).to(CPU)
        return LayerFactors(inputs, gradient, None, self.bias, self.is_transposed)


class _Enough(BaseException):
    """What was watched for has been seen; no fault that a model's owner could catch."""


class _Watch(TorchFunctionMode):
    """Notes products with watched weights, and lets gradients through."""

    def __init__(self, weights: Mapping[str, Tensor], until: str | None = None) -> None:
        super().__init__()
        self.weights, self.passed, self.until = weights, list[_Passed](), until

    def __torch_function__(
        self, function: Any, types: Any, given: Sequence[Any] = (), named: Any = None
    ) -> Any:
        """Call a function of torch; what it returns carries a probe for its gradient."""
        named = named or {}
        if function is SET_GRADIENTS:
            return function(self.until is None)
        if function is Tensor.detach:
            return given[0]
        if function in TO_NUMBERS:
            return function(given[0].detach(), *given[1:], **named)
        if _writes_parameter(function, given):  # as load_state_dict does
            with torch.no_grad():
                return function(*given, **named)
        product = self._product(function, given, named)
        if product is not None and product[0] == self.until:
            self.passed.append(_Passed(*product, torch.empty(0), False))
            raise _Enough
        result = function(*given, **named)
        if product is None:
            return result
        probe, is_fixed = result, result.is_inference() or self.until is not None
        if not (result.requires_grad or is_fixed):
            probe = result.detach().requires_grad_()
        self.passed.append(_Passed(*product, probe, function is conv2d))
        return probe.clone()  # which the model may write into

    def _product(
        self, function: Any, given: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[str, str, bool, Tensor] | None:
        """Return weight, bias, whether it is transposed, and inputs; None for others."""
        bias: Tensor | None = None
        if function is linear or function is conv2d:
            values = {**dict(zip(CONVOLVED, given, strict=False)), **named}
            name, bias = self._name(values["weight"]), values.get("bias")
            inputs = values["input"] if function is linear else _patches(**values)
            if not name or inputs is None:
                return None
            return name, self._name(bias), False, inputs
        if function is torch.addmm:
            bias, inputs, weight = given[:3]
        elif function in PRODUCTS:
            inputs, weight = given[:2]
        else:
            return None
        if weight.ndim == 3 and len(weight) == len(inputs) == 1:  # a stack of one model
            weight, inputs = weight[0], inputs[0]
        if weight.ndim != 2:
            return None
        for tensor, is_transposed in ((weight.T, False), (weight, True)):
            if name := self._name(tensor):
                return name, self._name(bias), is_transposed, inputs
        return None

    def _name(self, tensor: Tensor | None) -> str:
        """Return the name of a watched tensor, or of the one that it is a copy of.

        Empty for others, and where several are equal, as factors are that start at zero.
        """
        if tensor is None:
            return ""
        alike = {n: t for n, t in self.weights.items() if t.shape == tensor.shape}
        for name, known in alike.items():
            if known is tensor:
                return name
        copied = [n for n, t in alike.items() if torch.equal(t.to(tensor), tensor)]
        return copied[0] if len(copied) == 1 else ""


def _writes_parameter(function: Any, given: Sequence[Any]) -> bool:
    """Say whether a function changes a tensor in place that gradients are taken by."""
    name = getattr(function, "__name__", "")
    is_tensor = bool(given) and isinstance(given[0], Tensor)
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place and is_tensor and given[0].is_leaf and given[0].requires_grad


def _patches(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Float[Tensor, "records patches columns"] | None:
    """Return what a convolution multiplies its weight by; None where it has groups."""
    if groups != 1 or isinstance(padding, str):
        return None
    columns = unfold(
        input, weight.shape[2:], dilation=dilation, padding=padding, stride=stride
    )
    return columns.transpose(1, 2)
