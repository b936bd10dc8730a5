"""Gradients by the context: of a whole batch, or of every record by itself.

Clipping per record needs each record's own gradient. A context has no batch axis, so
the hooks of DP libraries don't see it; but all records of a client share the forward
pass of the text tower, and a record enters only through what is multiplied from the
left. So one forward pass serves the cohort, and a record costs one vector-Jacobian
product: many at once where the cohort is small, one position of the batch after the
other where it is large (measured on two cores; more at once is slower there).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.federated.batches import (
    Batch,
    pick_batch,
    poisson_batches,
    views_of,
    with_canaries,
)
from privaudit.federated.trainer import Cohort, Round, Task
from privaudit.tuning.prompts.learning import logits_of, record_losses

PRODUCTS_AT_ONCE = 40  # contexts times records in one backward pass


def poisson_batch(cohort: Cohort, at: Round, rate: float) -> Batch:
    """Draw every record by its own coin, and cut none: padded to the largest sample.

    Args:
        cohort: Who trains.
        at: Names the random streams, one for each client.
        rate: Chance of a record, in (0, 1].
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
    _contexts: Float[Tensor, "k tokens width"]
    _text: Float[Tensor, "k classes d"]
    _errors: Float[Tensor, "k b classes"]
    _batch: Batch

    @classmethod
    def forward(
        cls,
        task: Task,
        contexts: Float[Tensor, "k tokens width"],
        batch: Batch,
    ) -> "ContextGradients":
        """Run the text tower, and keep what gradients need.

        By a class's text feature, a record's cross-entropy has the gradient
        (probability - [is the label]) * logit scale * image feature.
        """
        with torch.enable_grad():
            leaf = contexts.detach().requires_grad_()
            text = task.prompts(leaf)
        logits = logits_of(task, text.detach(), batch.features)
        errors = logits.softmax(-1) - one_hot(batch.labels, logits.shape[-1])
        counted = batch.mask & ~batch.is_crafted
        errors = torch.where(counted[..., None], task.logit_scale * errors, 0)
        losses = record_losses(logits, batch.labels)
        losses = with_canaries(losses, leaf.detach(), batch)
        losses = torch.where(batch.mask, losses, 0).sum(dim=1)
        return cls(losses / batch.sizes.clamp(min=1), leaf, text, errors, batch)

    @property
    def sizes(self) -> Int[Tensor, " k"]:
        """How many records each batch holds."""
        return self._batch.sizes

    def of_batch(self) -> Float[Tensor, "k tokens width"]:
        """Return the gradient of each client's summed loss."""
        behind = torch.einsum("kbc,kbd->kcd", self._errors, self._batch.features)
        gradient = self._product(behind)
        crafted = self._batch.crafted
        return gradient if crafted is None else gradient + crafted.sum(dim=1)

    def by_record(
        self,
    ) -> Iterator[tuple[Float[Tensor, "k c tokens width"], Bool[Tensor, "k c"]]]:
        """Yield every record's gradient, some positions of the batch at a time.

        With them comes the batch's mask; the gradients of padding are zero.
        """
        at_once = max(1, PRODUCTS_AT_ONCE // len(self._contexts))
        for positions in torch.arange(self._errors.shape[1]).split(at_once):
            errors, features = (
                self._errors[:, positions],
                self._batch.features[:, positions],
            )
            behind = torch.einsum("kbc,kbd->bkcd", errors, features)
            if len(behind) == 1:
                gradients = self._product(behind[0]).unsqueeze(1)
            else:
                gradients = self._product(behind, many=True).transpose(0, 1)
            if self._batch.crafted is not None:
                gradients = gradients + self._batch.crafted[:, positions]
            yield gradients, self._batch.mask[:, positions]

    def _product(self, behind: Tensor, many: bool = False) -> Tensor:
        (product,) = torch.autograd.grad(
            self._text, self._contexts, behind, retain_graph=True, is_grads_batched=many
        )
        return product
