"""Local training that is pulled towards an anchor: FedProx' and FedAMP's objective."""

import pydantic.dataclasses
import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch
from privaudit.federated.trainer import Cohort, Round, Task
from privaudit.tuning.prompts.learning import LocalSgd, prompt_losses


def pull(
    contexts: Float[Tensor, "k ..."], anchors: Float[Tensor, "k ..."], strength: float
) -> Float[Tensor, " k"]:
    """Return strength / 2 * |context - anchor|^2, whose gradient leads to the anchor.

    The context must not be detached: without a gradient the term changes nothing.
    """
    return strength / 2 * (contexts - anchors).square().flatten(1).sum(dim=1)


@pydantic.dataclasses.dataclass(frozen=True)
class ProximalTrainer(LocalSgd):
    """A prompt trainer whose clients minimise their loss plus a pull to an anchor."""

    def train_near(
        self,
        task: Task,
        cohort: Cohort,
        contexts: Float[Tensor, "k tokens width"],
        anchors: Float[Tensor, "k tokens width"],
        strength: float,
        at: Round,
    ) -> tuple[Float[Tensor, "k tokens width"], Float[Tensor, " k"]]:
        """Run the local epochs, and return the contexts and the mean objective.

        Args:
            task: The task.
            cohort: Who trains.
            contexts: Where each client begins.
            anchors: What it is pulled to; no gradient reaches them.
            strength: Of the pull, at least 0; 0 leaves plain training. Steps diverge
                from about 2 (1 + momentum) / learning rate on.
            at: The round.
        """
        anchors = anchors.detach()

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            context = parameters["context"]
            return prompt_losses(task, context, batch) + pull(
                context, anchors, strength
            )

        trained, losses = self.fit(task, cohort, {"context": contexts}, objective, at)
        return trained["context"], losses


def attention(
    own: Float[Tensor, " size"],
    others: Float[Tensor, "others size"],
    alpha: float,
    sigma: float,
) -> Float[Tensor, " others"]:
    """Return xi_ij = alpha A'(|w_i - w_j|^2), with A'(x) = exp(-x / sigma) / sigma.

    Source: Huang et al., "Personalized cross-silo federated learning on non-IID data",
    AAAI 2021, algorithm 1, with A(x) = 1 - exp(-x / sigma).

    Args:
        own: w_i, flat.
        others: Every w_j but w_i itself.
        alpha: The server's step, above 0.
        sigma: Of squared distances, above 0.
    """
    squares = (others - own).square().sum(dim=1)
    return alpha * torch.exp(-squares / sigma) / sigma


def pass_messages(
    own: Float[Tensor, " size"],
    others: Float[Tensor, "others size"],
    alpha: float,
    sigma: float,
) -> Float[Tensor, " size"]:
    """Return u_i = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j, over all others j.

    A mean of prompts as long as the attention sums to at most 1, which is certain if
    alpha times the number of others is at most sigma.
    """
    weights = attention(own, others, alpha, sigma)
    return own + weights @ (others - own)
