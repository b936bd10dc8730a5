"""Gradients of any loss by any parameters: of a batch, or of every record by itself.

:class:`privaudit.tuning.prompts.gradients.ContextGradients` knows one loss in closed form.
This one asks for the records' losses and differentiates: one vector-Jacobian product a
record.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch
from privaudit.tuning.prompts.grouped_forward import (
    Products,
    SizeGroup,
    by_autograd,
    forward_in_groups,
    gradients_by_record,
    in_order,
)

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
