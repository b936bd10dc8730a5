"""Gradients by prompts: of a whole batch, or of every record by itself.

Clipping per record needs each record's own gradient. A context has no batch axis, so
the hooks of DP libraries don't see it; but all records of a client share the forward
pass of the text tower, and a record enters only through what is multiplied from the
left. So a record costs one vector-Jacobian product through its client's forward pass, and
those of several clients are one backward pass. Poisson samples differ in size: with all
clients behind one graph, each would have as many products as the largest sample has
records. So clients with about as many records share a graph, and what padding costs does
not grow with the cohort.

:class:`ContextGradients` knows the cross-entropy of a context in closed form;
:class:`RecordGradients` asks for the records' losses, by any parameters, and
differentiates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from privaudit.core.devices import CPU
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import (
    Batch,
    pick_batch,
    poisson_batches,
    views_of,
    with_canaries,
)
from privaudit.federation.trainer import Cohort, Round, Task
from privaudit.models.interfaces import Linearises, Prompts
from privaudit.tuning.prompts.learning import logits_of, record_losses

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
    parameters: Stacked, mask: Bool[Tensor, "k b"], run: Forward, *, by_record: bool
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


def poisson_batch(cohort: Cohort, at: Round, rate: float) -> Batch:
    """Draw every record by its own coin, and cut none: padded to the largest sample.

    ``rate`` is the chance of a record, in (0, 1].
    """
    drawn = poisson_batches(cohort, at, rate)
    width = max(1, int(drawn.sum(dim=1).max()))
    chosen = drawn.int().argsort(dim=1, descending=True, stable=True)[:, :width]
    return _noted_batch(cohort, at, chosen, drawn.gather(1, chosen))


def fixed_batch(cohort: Cohort, at: Round, size: int) -> Batch:
    """Draw ``size`` records of each client without replacement, or all if fewer."""
    sizes = cohort.sizes.clamp(max=size)
    chosen = torch.zeros(len(cohort), max(1, int(sizes.max())), dtype=torch.long)
    mask = torch.arange(chosen.shape[1]) < sizes[:, None]
    for row, client in enumerate(cohort.clients):
        order = at.stream("batches", client).permutation(int(cohort.sizes[row]))
        chosen[row, : int(sizes[row])] = torch.from_numpy(order[:size])
    return _noted_batch(cohort, at, chosen, mask)


def _noted_batch(
    cohort: Cohort, at: Round, chosen: Int[Tensor, "k b"], mask: Bool[Tensor, "k b"]
) -> Batch:
    if at.trace is not None:
        at.trace.batch(chosen, mask)
    return pick_batch(cohort, chosen, mask, views_of(cohort, at, chosen))


@dataclass(frozen=True)
class ContextGradients:
    """One forward pass of a cohort's contexts, from which gradients can be asked.

    Attributes:
        losses: Each client's mean loss over its batch; 0 for an empty one.
    """

    losses: Float[Tensor, " k"]
    _groups: tuple[SizeGroup, ...]
    _errors: Float[Tensor, "k b classes"]
    _batch: Batch

    @classmethod
    def forward(
        cls,
        task: Task,
        contexts: Float[Tensor, "k tokens width"],
        batch: Batch,
        *,
        by_record: bool = True,
    ) -> "ContextGradients":
        """Run the text tower, and keep what gradients need.

        By a class's text feature, a record's cross-entropy has the gradient
        (probability - [is the label]) * logit scale * image feature.

        ``by_record``: whether :meth:`by_record` will be asked, which is faster then.
        """

        def run(own: Stacked, *_: Any) -> tuple[Tensor, Products]:
            return _text(task.prompts, own["context"], by_record)

        groups = forward_in_groups(
            {"context": contexts}, batch.mask, run, by_record=by_record
        )
        text = in_order(groups, [group.output for group in groups])
        logits = logits_of(task, text, batch.features)
        errors = logits.softmax(-1) - one_hot(batch.labels, logits.shape[-1])
        counted = batch.mask & ~batch.is_crafted
        errors = torch.where(counted[..., None], task.logit_scale * errors, 0)
        losses = record_losses(logits, batch.labels)
        losses = with_canaries(losses, contexts.detach(), batch)
        losses = torch.where(batch.mask, losses, 0).sum(dim=1)
        return cls(losses / batch.sizes.clamp(min=1), groups, errors, batch)

    @property
    def sizes(self) -> Int[Tensor, " k"]:
        """How many records each batch holds."""
        return self._batch.sizes

    def of_batch(self) -> Float[Tensor, "k tokens width"]:
        """Return the gradient of each client's summed loss."""
        behind = torch.einsum("kbc,kbd->kcd", self._errors, self._batch.features)
        products = [group.product(behind[group.clients]) for group in self._groups]
        gradient = in_order(self._groups, [product["context"] for product in products])
        crafted = self._batch.crafted
        return gradient if crafted is None else gradient + crafted.sum(dim=1)

    def by_record(
        self,
    ) -> Iterator[tuple[Float[Tensor, "k c tokens width"], Bool[Tensor, "k c"]]]:
        """Yield every record's gradient, some positions of the batch at a time.

        With them comes the batch's mask; the gradients of padding are zero.
        """
        first, crafted = 0, self._batch.crafted
        for gradients, mask in gradients_by_record(
            self._groups, self._batch.mask, self._behind
        ):
            context, end = gradients["context"], first + mask.shape[1]
            yield context if crafted is None else context + crafted[:, first:end], mask
            first = end

    def _behind(
        self, group: SizeGroup, some: slice
    ) -> Float[Tensor, "c some classes d"]:
        errors = self._errors[group.clients, some]
        features = self._batch.features[group.clients, some]
        return torch.einsum("kbc,kbd->bkcd", errors, features)


def _text(
    prompts: Prompts, contexts: Float[Tensor, "k tokens width"], many: bool
) -> tuple[Tensor, Products]:
    """Return text features, and products with their derivative, few or many."""
    if many and isinstance(prompts, Linearises):
        known = prompts.jacobian(contexts)
        if known is not None:
            return known.features, lambda v: {"context": known.products(v)}
    return by_autograd({"context": contexts}, lambda own: prompts(own["context"]))


RecordLosses = Callable[[Stacked, Batch], Float[Tensor, "k b"]]
"""From parameters and a batch to every record's loss, differentiable.

A record's loss must not depend on another record, and what padding gets is ignored.
"""


@dataclass(frozen=True)
class RecordGradients:
    """One forward pass of a cohort, from which gradients can be asked.

    Attributes:
        losses: Of every record; 0 for padding.
        mask: False where padding stands.
    """

    losses: Float[Tensor, "k b"]
    mask: Bool[Tensor, "k b"]
    _groups: tuple[SizeGroup, ...]

    @classmethod
    def forward(
        cls,
        parameters: Stacked,
        record_losses: RecordLosses,
        batch: Batch,
        *,
        by_record: bool = True,
    ) -> "RecordGradients":
        """Compute the losses, and keep what gradients need.

        ``record_losses`` is called with some clients' parameters and batches, and every
        parameter must have a part in it. ``by_record``: whether :meth:`by_record` will
        be asked, which is faster then.
        """

        def run(own: Stacked, clients: Tensor, width: int) -> tuple[Tensor, Products]:
            part = batch.part(clients, slice(width))
            return by_autograd(
                own, lambda p: torch.where(part.mask, record_losses(p, part), 0)
            )

        groups = forward_in_groups(parameters, batch.mask, run, by_record=by_record)
        missing = [batch.mask.shape[1] - group.width for group in groups]
        losses = [
            pad(group.output, (0, count))
            for group, count in zip(groups, missing, strict=True)
        ]
        return cls(in_order(groups, losses), batch.mask, groups)

    @property
    def mean_losses(self) -> Float[Tensor, " k"]:
        """Each client's mean loss; 0 for an empty batch."""
        return self.losses.sum(dim=1) / self.mask.sum(dim=1).clamp(min=1)

    def of_mean(self) -> dict[str, Tensor]:
        """Return the gradient of each client's mean loss."""
        sizes = self.mask.sum(dim=1, keepdim=True).clamp(min=1)
        return self._product((self.mask / sizes).to(self.losses.dtype))

    def of_sum(self) -> dict[str, Tensor]:
        """Return the gradient of each client's summed loss."""
        return self._product(torch.ones_like(self.losses))

    def by_record(self) -> Iterator[tuple[dict[str, Tensor], Bool[Tensor, "k c"]]]:
        """Yield every record's gradients [k, c, ...], some positions of b at a time.

        With them comes the batch's mask; the gradients of padding are zero.
        """
        return gradients_by_record(self._groups, self.mask, _one_hot)

    def _product(self, behind: Float[Tensor, "k b"]) -> dict[str, Tensor]:
        products = [
            group.product(behind[group.clients, : group.width])
            for group in self._groups
        ]
        return {
            name: in_order(self._groups, [product[name] for product in products])
            for name in products[0]
        }


def _one_hot(group: SizeGroup, some: slice) -> Float[Tensor, "c some b"]:
    """Return what makes a product the gradient of one record's loss."""
    rows = torch.eye(group.width, dtype=group.output.dtype)[some]
    return rows.unsqueeze(1).expand(-1, len(group.clients), -1)
