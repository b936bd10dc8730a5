"""Uploads for a weighted mean, tensors times a weight so that sums are enough; and in few bits.

In few bits, tensors are rounded to an even grid from the smallest number to the largest:
a code of b bits stands for low + code (high - low) / (2^b - 1). Codes lie bit by bit
behind each other, so that a message holds as many bytes as would be sent.

Source: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited
communication", ICML 2017, section 2.2, for stochastic rounding; here each tensor of each
client has its own grid, and "nearest" rounds without chance.
"""

import math
from collections.abc import Mapping
from typing import Literal

from jaxtyping import Float, Int, UInt8

from privaudit.core.errors import TranscriptError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Stacked, Tensors, beside
from privaudit.datasets.records import ClientId, Cohort
from privaudit.federation.threat_models import View

RANGE = "range of "
"""Begins the name of a tensor's smallest number, its largest, and how many bits."""
MOST_BITS = 16


def quantised(
    name: str,
    tensor: Float[Tensor, "k ..."],
    bits: int,
    draws: Float[Tensor, "k ..."] | None,
) -> dict[str, Tensor]:
    """Return each client's codes [k, bytes] of a tensor, and its range [k, 3].

    A code has 1 to 16 ``bits``. ``draws`` in [0, 1) round at random, with the number
    itself as the mean; None takes the nearest code.

    Example:
        >>> numbers = torch.tensor([[0.0, 0.3, 1.0]])
        >>> sent = quantised("a", numbers, 2, None)
        >>> sent["a"].tolist(), sent["range of a"].tolist()
        ([[52]], [[0.0, 1.0, 2.0]])
        >>> back = with_numbers(sent, {"a": numbers[0]})["a"]
        >>> (3 * back).round().tolist()
        [[0.0, 1.0, 3.0]]
    """
    rows = tensor.flatten(1)
    low, high = rows.min(dim=1).values, rows.max(dim=1).values
    step = ((high - low) / (2**bits - 1)).unsqueeze(1)
    places = torch.where(step > 0, (rows - low.unsqueeze(1)) / step, 0.0)
    up = torch.full_like(rows, 0.5) if draws is None else draws.flatten(1)
    codes = (places + up).floor().clamp(0, 2**bits - 1).long()
    ends = torch.stack([low, high, torch.full_like(low, bits)], dim=1)
    return {name: _packed(codes, bits), RANGE + name: ends}


def _numbers(
    name: str, packed: Tensor, ends: Tensor, like: Mapping[str, Tensor]
) -> Float[Tensor, "k ..."]:
    width = _width(name, packed, ends, like)
    shape = like[name].shape
    low, high, _ = ends.unsqueeze(2).unbind(dim=1)
    codes = _unpacked(packed, width)[:, : math.prod(shape)]
    numbers = low + codes * ((high - low) / (2**width - 1))
    return numbers.view(len(packed), *shape)


def _width(name: str, packed: Tensor, ends: Tensor, like: Mapping[str, Tensor]) -> int:
    """Return the bits of a code, of a message that may be anybody's."""
    fits = name in like and packed.dtype == torch.uint8 and packed.ndim == 2
    if fits and tuple(ends.shape) == (len(packed), 3):
        widths = set(ends[:, 2].tolist())
        (width,) = widths if len(widths) == 1 else (0,)
        if width in range(1, MOST_BITS + 1):
            size = -(-like[name].numel() * int(width) // 8)
            if packed.shape[1] == size and bool(ends.isfinite().all()):
                return int(width)
    raise TranscriptError(
        f"Uploads have {name!r} in few bits, and its codes, their range and the tensor "
        f"that they are of do not fit: codes {tuple(packed.shape)} of {packed.dtype}, "
        f"range {tuple(ends.shape)}. Take the record from where it was written."
    )


def _packed(codes: Int[Tensor, "k numbers"], bits: int) -> UInt8[Tensor, "k bytes"]:
    ones = ((codes.unsqueeze(2) >> _places(bits, codes)) & 1).flatten(1)
    whole = torch.nn.functional.pad(ones, (0, -ones.shape[1] % 8))
    eights = whole.view(len(codes), -1, 8) << _places(8, codes)
    return eights.sum(dim=2).to(torch.uint8)


def _unpacked(packed: UInt8[Tensor, "k bytes"], bits: int) -> Int[Tensor, "k numbers"]:
    ones = ((packed.long().unsqueeze(2) >> _places(8, packed)) & 1).flatten(1)
    codes = ones[:, : ones.shape[1] // bits * bits].view(len(packed), -1, bits)
    return (codes << _places(bits, codes)).sum(dim=2)


def _places(bits: int, beside: Tensor) -> Int[Tensor, " bits"]:
    return torch.arange(bits, device=beside.device)


UNTRAINED = "the client's own training in its last round"
"""What is missing of a client where only the mean is seen."""
WEIGHT = "weight"
"""The tensor of an upload that says what it weighs in the mean."""
STATISTIC = "weight by "
"""Begins the name of a mean over a client's records; see client_statistics."""
COORDINATES = "coordinates"
"""What tells where numbers belong among all that is learned, in a row."""
Role = Literal["model", "weight", "statistic", "coordinates", "range"]


def role_of(name: str) -> Role:
    """Return what a tensor of an upload is; names are what transcripts store.

    Example:
        >>> [role_of(name) for name in ("context", WEIGHT, weight_of("A"))]
        ['model', 'weight', 'weight']
    """
    if name == COORDINATES:
        return "coordinates"
    if name.startswith(STATISTIC):
        return "statistic"
    if name.startswith(RANGE):
        return "range"
    return "weight" if name == WEIGHT or name.startswith(weight_of("")) else "model"


def weight_of(ending: str) -> str:
    """Return the name of the weight of those tensors alone whose names end so."""
    return f"{WEIGHT} {ending}"


def weight_in(upload: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return what a tensor is weighed by: its own, its last letter's, or all tensors'."""
    for weight in (weight_of(name), weight_of(name[-1]), WEIGHT):
        if weight in upload:
            return upload[weight]
    return None


def with_numbers(sent: Mapping[str, Tensor], like: Tensors) -> dict[str, Tensor]:
    """Return stacked uploads as they would be had nothing been sent in few bits.

    Codes are of tensors without their weight, and what comes back is times it.

    ``like`` is what one client received, whose shapes are the uploads'.

    Raises:
        TranscriptError: Codes, their range and the tensor that they are of do not fit.
    """
    numbers = {name: t for name, t in sent.items() if not name.startswith(RANGE)}
    for name in (name for name in sent if RANGE + name in sent):
        numbers[name] = _numbers(name, sent[name], sent[RANGE + name], like)
        weight = weight_in(sent, name)
        if weight is not None:
            numbers[name] *= beside(weight, numbers[name])
    return numbers


def weighted_upload(
    cohort: Cohort, trained: Mapping[str, Float[Tensor, "k ..."]]
) -> Stacked:
    """Return what is sent: tensors times the number of records, and that number.

    So that the server needs only the sums of both.
    """
    first = next(iter(trained.values()))
    return times_weight(trained, cohort.sizes.to(first.dtype))


def times_weight(
    trained: Mapping[str, Float[Tensor, "k ..."]], weight: Float[Tensor, " k"]
) -> dict[str, Tensor]:
    """Return tensors times each client's weight, and the weight beside them."""
    scaled = {name: tensor * beside(weight, tensor) for name, tensor in trained.items()}
    return scaled | {WEIGHT: weight}


def apply_mean(server: Tensors, sums: Tensors) -> Tensors:
    """Return the server's state with the means of what was sent in their places.

    The state stays as it is where nobody had a record, or sent one.
    """
    if not sums or (weight := sums[WEIGHT]) == 0:
        return server
    means = {name: total / weight for name, total in sums.items() if name != WEIGHT}
    return {**server, **means}


def without_weight(upload: Tensors) -> dict[str, Tensor] | None:
    """Return an upload with its weight divided out; None where it has no records."""
    weight = upload[WEIGHT]
    if not weight > 0:
        return None
    return {n: torch.div(t, weight) for n, t in upload.items() if n != WEIGHT}


def last_sent(view: View, client: ClientId) -> dict[str, Tensor] | None:
    """Return what the client last trained and sent, its weight divided out.

    None where the view shows no upload, or the client had no records.
    """
    if not view.sees_updates_of(client):
        return None
    return without_weight(view.updates_of(client)[-1].tensors)


def update_deltas(
    sent: Stacked, received: Tensors
) -> dict[str, Float[Tensor, "k ..."]]:
    """Return where uploads moved what was received, their weights divided out.

    What was not received, such as a gradient, is taken as it is. Numbers that came with
    their coordinates stand there, among zeros, in a row of all that was received.
    Integers and truth values count as floating-point numbers.
    """
    sent, deltas = with_numbers(sent, received), {}
    for name in (name for name in sent if role_of(name) == "model"):
        tensor, before = _floating(sent[name]), received.get(name)
        if COORDINATES in sent:
            size = sum(t.numel() for n, t in received.items() if n != COORDINATES)
            row = torch.zeros(len(tensor), size, dtype=tensor.dtype)
            tensor = row.scatter(1, sent[COORDINATES], tensor)
        weight = weight_in(sent, name)
        if weight is not None:
            tensor = tensor / beside(weight, tensor).clamp(min=1e-9)
        if before is not None and before.shape == tensor.shape[1:]:
            tensor = tensor - _floating(before)
        deltas[name] = tensor
    return deltas


def _floating(tensor: Tensor) -> Float[Tensor, "..."]:
    return tensor if tensor.is_floating_point() else tensor.float()
