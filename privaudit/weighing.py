"""Uploads for a weighted mean: tensors times a weight, so that sums are enough."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.tensors import Stacked
from privaudit.threats import View
from privaudit.trainer import ClientId, Cohort


def weigh(cohort: Cohort, trained: Mapping[str, Float[Tensor, "k ..."]]) -> Stacked:
    """Return what is sent: tensors times the number of records, and that number.

    So that the server needs only the sums of both.
    """
    first = next(iter(trained.values()))
    return times_weight(trained, cohort.sizes.to(first.dtype))


def times_weight(
    trained: Mapping[str, Float[Tensor, "k ..."]], weight: Float[Tensor, " k"]
) -> dict[str, Tensor]:
    """Return tensors times each client's weight, and the weight beside them."""
    scaled = {
        name: tensor * weight.view(-1, *[1] * (tensor.ndim - 1))
        for name, tensor in trained.items()
    }
    return scaled | {"weight": weight}


def last_sent(view: View, client: ClientId) -> dict[str, Tensor] | None:
    """Return what the client last trained and sent, its weight divided out.

    None where the view shows no upload, or the client had no records.
    """
    if not view.sees_updates_of(client):
        return None
    tensors = view.updates_of(client)[-1].tensors
    weight = tensors["weight"]
    if not weight > 0:
        return None
    return {n: torch.div(t, weight) for n, t in tensors.items() if n != "weight"}
