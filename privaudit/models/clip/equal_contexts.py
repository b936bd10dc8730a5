"""Prompts that encode contexts that are equal once, however many clients hold them."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.models.interfaces import Linearised, Linearises, Prompts


@dataclass(frozen=True)
class EqualContexts:
    """Prompts for clients that hold the same contexts: :class:`Prompts` itself.

    A gradient is then one vector-Jacobian product of each client, through one forward
    pass. Where contexts differ, or products are not faster, the prompts are asked.
    """

    prompts: Prompts

    @property
    def context_tokens(self) -> int:
        """Learned vectors in front of a class name."""
        return self.prompts.context_tokens

    @property
    def width(self) -> int:
        """Size of one such vector."""
        return self.prompts.width

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return the text features of every class, differentiable once."""
        known = self.jacobian(contexts.detach())
        if known is None:
            return self.prompts(contexts)
        return _Features.apply(contexts, known)  # type: ignore[no-untyped-call]

    def jacobian(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Linearised | None:
        """Return the features, for many products with their derivative."""
        if not isinstance(self.prompts, Linearises):
            return None
        each, which = contexts.unique(dim=0, return_inverse=True)
        copies, over = divmod(len(contexts), len(each))
        if over or not bool((which.bincount() == copies).all()):
            return self.prompts.jacobian(contexts)
        known = self.prompts.jacobian(each)
        whose = which.argsort(stable=True).view(-1, copies)
        return None if known is None else _Repeated(known, which, whose)


@dataclass(frozen=True)
class _Repeated:
    """A text tower at contexts, each of which some clients hold."""

    known: Linearised
    which: Int[Tensor, " k"]
    whose: Int[Tensor, "contexts copies"]

    @property
    def features(self) -> Float[Tensor, "k classes dim"]:
        return self.known.features[self.which]

    def products(
        self, behind: Float[Tensor, "n k classes dim"]
    ) -> Float[Tensor, "n k tokens width"]:
        side_by_side = behind[:, self.whose].transpose(1, 2).flatten(0, 1)
        found = self.known.products(side_by_side)
        found = found.unflatten(0, (len(behind), -1)).transpose(1, 2).flatten(1, 2)
        return found[:, self.whose.flatten().argsort()]


class _Features(torch.autograd.Function):
    """Features of known contexts, whose derivative is known too."""

    @staticmethod
    def forward(ctx: Any, contexts: Tensor, known: Linearised) -> Tensor:
        ctx.known = known
        return known.features.clone()

    @staticmethod
    def backward(ctx: Any, behind: Tensor) -> tuple[Tensor, None]:
        return ctx.known.products(behind.unsqueeze(0))[0], None
