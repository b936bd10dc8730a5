"""Uploads for a weighted mean: tensors times a weight, so that sums are enough."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.tensors import Stacked, Tensors
from privaudit.datasets.records import ClientId, Cohort
from privaudit.federated.transcripts.quantised import RANGE, dequantised
from privaudit.federated.transcripts.threat_models import View

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
    """
    numbers = dequantised(sent, like)
    for name in (name for name in sent if RANGE + name in sent):
        weight = weight_in(sent, name)
        if weight is not None:
            numbers[name] = _times(numbers[name], weight)
    return numbers


def _times(tensor: Tensor, weight: Tensor) -> Tensor:
    return tensor * weight.view(-1, *[1] * (tensor.ndim - 1))


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
    scaled = {name: _times(tensor, weight) for name, tensor in trained.items()}
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
            tensor = tensor / weight.view(-1, *[1] * (tensor.ndim - 1)).clamp(min=1e-9)
        if before is not None and before.shape == tensor.shape[1:]:
            tensor = tensor - _floating(before)
        deltas[name] = tensor
    return deltas


def _floating(tensor: Tensor) -> Float[Tensor, "..."]:
    return tensor if tensor.is_floating_point() else tensor.float()
