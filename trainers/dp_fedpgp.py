"""FedPGP with differential privacy: noise in every local step, or as published."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import Batch, Penalty
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import TRAINERS, ClientId, Reconstruction, Task
from privaudit.federation.uploads import UNTRAINED
from privaudit.tuning.prompts.contrast import (
    low_rank_start,
    personal_context,
    prompts_contrast,
)
from privaudit.tuning.prompts.gradients import RecordLosses
from privaudit.tuning.prompts.learning import CONTEXT_STD, context_losses, start_context
from privaudit.tuning.prompts.private_training import PrivatePairTrainer


@TRAINERS.register("dp-fedpgp")
@dataclass(frozen=True)
class DPFedPGP(PrivatePairTrainer):
    """FedPGP with DP noise: send sigma, keep the low-rank U and V.

    Modes: "sound" clips each record's gradients by all three jointly, in ``steps``
    steps a round; no record enters the contrast, which needs neither clip nor noise.
    "published-paper" takes one step of one batch, each tensor's gradient clipped by
    itself, and noises U and V at their client and the mean of sigma at the server.
    "published-code" has no contrast, and noises gradients in place of prompts.

    Local update, upload and mean of a prompt that is sent and a part that is kept:
    ``PrivatePairTrainer.local_update`` and ``PrivatePairTrainer.aggregate``,
    tuning/prompts/private_training.py.

    Source: Cui et al., "Harmonizing generalization and personalization in federated
    prompt learning", ICML 2024, algorithm 1; with noise as in Tran et al.,
    "Privacy-preserving personalized federated prompt learning for multimodal large
    language models", ICLR 2025, appendix on baselines; steps as in Abadi et al., "Deep
    learning with differential privacy", CCS 2016, algorithm 1.

    The published rate is 0.001 on ViT-B/16; the default suits the embedded model.

    Attributes:
        rank: Rank of U V, at least 1; published 8.
        contrast: Weight of the contrastive loss, at least 0; published 1.
        temperature: Temperature of the contrastive loss, above 0; published 0.5.
    """

    usual_rounds: ClassVar[int] = 20

    rank: Annotated[int, Field(ge=1)] = 8
    contrast: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random global prompt, and the code's momentum."""
        return self.begin({"context": start_context(task, seeds)})

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return random factors of the client's own, and the code's momentum."""
        return self.begin(low_rank_start(task, client, self.rank, seeds))

    def losses(self, task: Task) -> RecordLosses:
        """Return cross-entropies under the personal prompt."""

        def losses(parameters: Stacked, batch: Batch) -> Tensor:
            return context_losses(task, personal_context(parameters), batch)

        return losses

    def penalty(self, task: Task) -> Penalty | None:
        """Return the contrast, which the published code leaves out."""
        if not self.contrast or self.mode == "published-code":
            return None

        def penalty(parameters: Stacked) -> Tensor:
            apart = prompts_contrast(task, parameters, self.temperature)
            return self.contrast * apart

        return penalty

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release sigma + U V."""
        return {"context": personal_context({**received, **kept})}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's last upload where it is seen, else the average.

        In "published-code" an upload is the gradient g by sigma + U V, by which U V
        moves as g V.T V + U U.T g: rank 0.02^2 g each, expected over the random start.
        """
        shared, hidden = self.shared_part(view, client), "the client's low-rank prompt"
        if not view.sees_updates_of(client):
            return Reconstruction({"context": shared}, (hidden, UNTRAINED))
        if self.mode != "published-code":
            return Reconstruction({"context": shared}, (hidden,))
        share = 2 * self.rank * CONTEXT_STD**2
        missing = ["the factors' random start"]
        if self.epsilon is not None:
            missing.append("the noise on the factors")
        guess = shared + share * self.integrated(view, client)
        return Reconstruction({"context": guess}, tuple(missing), 0, True)
