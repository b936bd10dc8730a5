"""Gradients by the context: of a whole batch, or of every record by itself.

Clipping per record needs each record's own gradient. A context has no batch axis, so
the hooks of DP libraries don't see it; but all records of a client share the forward
pass of the text tower, and a record enters only through what is multiplied from the
left. So a record costs one vector-Jacobian product, and many are one backward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import (
    Batch,
    pick_batch,
    poisson_batches,
    views_of,
    with_canaries,
)
from privaudit.federated.trainer import Cohort, Round, Task
from privaudit.models.interfaces import Linearises, Prompts
from privaudit.tuning.prompts.grouped_forward import (
    Products,
    SizeGroup,
    by_autograd,
    forward_in_groups,
    gradients_by_record,
    in_order,
)
from privaudit.tuning.prompts.learning import logits_of, record_losses


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
