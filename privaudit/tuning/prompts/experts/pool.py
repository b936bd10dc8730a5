"""The server's pool of prompts, and which of them a client gets as experts."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import ClientId, Round, Task

Choose = Literal["nearest", "random", "all"]
PREFIX = "pool/"
ENCODED_AT_ONCE = 64  # prompts in one pass of the text tower: bounds memory


def pool_of(server: Tensors) -> dict[ClientId, Tensor]:
    """Return every client's last prompt, by client."""
    return {
        name.removeprefix(PREFIX): tensor
        for name, tensor in server.items()
        if name.startswith(PREFIX)
    }


def into_pool(prompts: Mapping[ClientId, Tensor]) -> dict[str, Tensor]:
    """Return prompts under the names they have in the server's state."""
    return {f"{PREFIX}{client}": prompt for client, prompt in prompts.items()}


def draw_experts(
    pool: Mapping[ClientId, Tensor],
    client: ClientId,
    at: Round,
    count: int,
    choose: Choose,
) -> Float[Tensor, "experts tokens width"] | None:
    """Return other clients' prompts for a client, or None where it gets none.

    They come in an order of chance, so that it tells neither owner nor distance nor
    age. A client without a prompt of its own in the pool gets none.

    The pool is as it stood after the round before. Chosen are the ``count`` "nearest"
    by l2 over the flattened prompts, ties in the order of names; so many "random" ones;
    or "all".
    """
    others = [pool[name] for name in sorted(pool) if name != client]
    if client not in pool or not others or not count:
        return None
    stacked = torch.stack(others)
    if choose == "nearest":
        distances = (stacked - pool[client]).flatten(1).norm(dim=1)
        stacked = stacked[distances.argsort(stable=True)[:count]]
    order = at.stream("experts", client).permutation(len(stacked))
    return stacked[order if choose == "all" else order[:count]]


@torch.no_grad()
def expert_features(
    task: Task, experts: Float[Tensor, "k experts tokens width"]
) -> Float[Tensor, "k classes experts dim"]:
    """Return the text features of experts, without gradient.

    Clients share most of their experts: each is encoded once.
    """
    flat = experts.flatten(0, 1)
    distinct, where = torch.unique(flat.flatten(1), dim=0, return_inverse=True)
    encoded = [
        task.prompts(chunk)
        for chunk in distinct.unflatten(1, flat.shape[1:]).split(ENCODED_AT_ONCE)
    ]
    features = torch.cat(encoded)[where]
    return features.unflatten(0, experts.shape[:2]).transpose(1, 2)
