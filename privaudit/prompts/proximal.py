"""Local training that is pulled towards an anchor: FedProx' and FedAMP's objective."""

import pydantic.dataclasses
from jaxtyping import Float
from torch import Tensor

from privaudit.batches import Batch
from privaudit.prompts.learning import LocalSgd, prompt_losses
from privaudit.tensors import Stacked
from privaudit.trainer import Cohort, PublicTask, Round


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
        task: PublicTask,
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

        trained, losses = self.fit(cohort, {"context": contexts}, objective, at)
        return trained["context"], losses
