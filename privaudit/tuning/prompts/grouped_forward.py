"""A cohort's forward pass in groups of like batches, and its records' own gradients.

A record's own gradient is one vector-Jacobian product through its client's forward
pass, and the products of several clients are one backward pass. Poisson samples differ
in size: with all clients behind one graph, each would have as many products as the
largest sample has records. So clients with about as many records share a graph, and
what padding costs does not grow with the cohort.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from privaudit.core.devices import CPU
from privaudit.core.tensors import Stacked

PRODUCTS_AT_ONCE = 40  # in one backward pass; measured on two cores: more is slower
GRADIENTS_AT_ONCE = 512  # in memory, before they are clipped and summed
PADDING = 8  # products that a group may waste: about what one more pass costs


Products = Callable[[Float[Tensor, "c some ..."]], dict[str, Tensor]]
"""From many vectors v to the gradients of <v, output> by each client's parameters."""


@dataclass(frozen=True)
class SizeGroup:
    """Clients whose batches are of about one size, behind one graph.

    Attributes:
        clients: Their positions in the cohort, in its order.
        width: How many positions of the batch any of them fills, at least 1.
        output: What their forward pass gave.
        products: Gradients of it by their parameters [c, some, ...].
    """

    clients: Int[Tensor, " some"]
    width: int
    output: Float[Tensor, "some ..."]
    products: Products

    def product(self, behind: Float[Tensor, "some ..."]) -> dict[str, Tensor]:
        """Return the gradient of <behind, output> by each client's parameters."""
        found = self.products(behind.unsqueeze(0))
        return {name: gradient[0] for name, gradient in found.items()}


def by_autograd(
    parameters: Stacked, run: Callable[[Stacked], Tensor]
) -> tuple[Tensor, Products]:
    """Return what a function gives, and products with its derivative.

    Every client's parameters must have a part in the output.
    """
    leaves = {n: t.detach().requires_grad_() for n, t in parameters.items()}
    with torch.enable_grad():
        output = run(leaves)

    def products(behind: Tensor) -> dict[str, Tensor]:
        many = len(behind) > 1
        found = torch.autograd.grad(
            output,
            list(leaves.values()),
            behind if many else behind[0],
            retain_graph=True,
            is_grads_batched=many,
        )
        named = zip(leaves, found, strict=True)
        return {name: g if many else g.unsqueeze(0) for name, g in named}

    return output.detach(), products


Forward = Callable[[Stacked, Int[Tensor, " some"], int], tuple[Tensor, Products]]
"""From the parameters of some clients, their positions and the width of their batches
to what is differentiated [some, ...], and products with its derivative."""


def forward_in_groups(
    parameters: Stacked,
    mask: Bool[Tensor, "k b"],
    run: Forward,
    *,
    by_record: bool,
) -> tuple[SizeGroup, ...]:
    """Run every client's parameters forward, and keep what gradients need.

    ``by_record``: whether records' own gradients will be asked for; else one graph is
    enough.
    """
    groups = []
    for members, width in _of_one_size(mask, by_record):
        clients = torch.tensor(members, device=mask.device)
        own = {name: tensor[clients] for name, tensor in parameters.items()}
        groups.append(SizeGroup(clients, width, *run(own, clients, width)))
    return tuple(groups)


def _of_one_size(
    mask: Bool[Tensor, "k b"], by_record: bool
) -> list[tuple[list[int], int]]:
    """Return clients in groups, the largest batches first, and each group's width.

    A GPU has many products as soon as one, and must not wait to be read: one group.
    """
    everyone, width = list(range(len(mask))), mask.shape[1]
    if not by_record or mask.device != CPU:
        return [(everyone, width)]
    filled = (mask * torch.arange(1, width + 1)).amax(dim=1).tolist()
    groups: list[tuple[list[int], int]] = []
    spare = 0
    for client in sorted(everyone, key=filled.__getitem__, reverse=True):
        spare -= groups[-1][1] - filled[client] if groups else 1
        if spare < 0:
            groups.append(([], max(1, filled[client]) if groups else width))
            spare = PADDING
        groups[-1][0].append(client)
    return [(sorted(members), width) for members, width in groups]


def in_order(
    groups: Sequence[SizeGroup], parts: Sequence[Float[Tensor, "some ..."]]
) -> Float[Tensor, "k ..."]:
    """Return what the groups have as the cohort has it."""
    return torch.cat(list(parts))[torch.cat([g.clients for g in groups]).argsort()]


def gradients_by_record(
    groups: Sequence[SizeGroup],
    mask: Bool[Tensor, "k b"],
    behind: Callable[[SizeGroup, slice], Float[Tensor, "c some ..."]],
) -> Iterator[tuple[dict[str, Tensor], Bool[Tensor, "k c"]]]:
    """Yield every record's gradients [k, c, ...], some positions of b at a time.

    ``behind`` is what the gradients of some positions are products with: for each, as
    the group's output, and zero for padding. With the gradients comes the batch's mask;
    those of padding are zero.
    """
    clients, width = mask.shape
    at_once = max(1, GRADIENTS_AT_ONCE // clients)
    for first in range(0, width, at_once):
        end, gradients = min(first + at_once, width), dict[str, Tensor]()
        for group in groups:
            step = max(1, PRODUCTS_AT_ONCE // len(group.clients))
            for start in range(first, min(end, group.width), step):
                some = slice(start, min(start + step, end, group.width))
                into = slice(some.start - first, some.stop - first)
                for name, found in group.products(behind(group, some)).items():
                    if name not in gradients:
                        shape = clients, end - first, *found.shape[2:]
                        gradients[name] = found.new_zeros(shape)
                    gradients[name][group.clients, into] = found.transpose(0, 1)
        yield gradients, mask[:, first:end]
