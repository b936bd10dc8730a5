"""Gradients of any loss by any parameters: of a batch, or of every record by itself.

:class:`privaudit.tuning.prompts.gradients.ContextGradients` knows one loss in closed form.
This one asks for the records' losses and differentiates: one forward pass for the
cohort, and one vector-Jacobian product a record.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch
from privaudit.tuning.prompts.gradients import PRODUCTS_AT_ONCE

RecordLosses = Callable[[Stacked, Batch], Float[Tensor, "k b"]]
"""From parameters and a batch to every record's loss, differentiable.

A record's loss must not depend on another record, and what padding gets is ignored.
"""

Penalty = Callable[[Stacked], Float[Tensor, " k"]]
"""From parameters alone to a term of every client's loss; no record enters it."""


@dataclass(frozen=True)
class RecordGradients:
    """One forward pass of a cohort, from which gradients can be asked.

    Attributes:
        losses: Of every record; 0 for padding.
        mask: False where padding stands.
    """

    losses: Float[Tensor, "k b"]
    mask: Bool[Tensor, "k b"]
    _leaves: dict[str, Tensor]

    @classmethod
    def forward(
        cls, parameters: Stacked, record_losses: RecordLosses, batch: Batch
    ) -> "RecordGradients":
        """Compute the losses, and keep what gradients need.

        Args:
            parameters: Each client's own [k, ...]; every one must have a part in the
                loss.
            record_losses: What is differentiated.
            batch: Of each client.
        """
        with torch.enable_grad():
            leaves = {n: t.detach().requires_grad_() for n, t in parameters.items()}
            losses = torch.where(batch.mask, record_losses(leaves, batch), 0)
        return cls(losses, batch.mask, leaves)

    @property
    def mean_losses(self) -> Float[Tensor, " k"]:
        """Each client's mean loss; 0 for an empty batch."""
        sizes = self.mask.sum(dim=1).clamp(min=1)
        return self.losses.detach().sum(dim=1) / sizes

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
        clients, width = self.losses.shape
        one_hot = torch.eye(width, dtype=self.losses.dtype)
        one_hot = one_hot.unsqueeze(1).expand(width, clients, width)
        at_once = max(1, PRODUCTS_AT_ONCE // clients)
        masks = self.mask.split(at_once, dim=1)
        for chunk, mask in zip(one_hot.split(at_once), masks, strict=True):
            if len(chunk) == 1:
                alone = self._product(chunk[0])
                yield {name: g.unsqueeze(1) for name, g in alone.items()}, mask
            else:
                many = self._product(chunk, many=True)
                yield {name: g.transpose(0, 1) for name, g in many.items()}, mask

    def _product(self, behind: Tensor, many: bool = False) -> dict[str, Tensor]:
        products = torch.autograd.grad(
            self.losses,
            list(self._leaves.values()),
            behind,
            retain_graph=True,
            is_grads_batched=many,
        )
        return dict(zip(self._leaves, products, strict=True))
