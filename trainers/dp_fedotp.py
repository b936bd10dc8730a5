"""FedOTP with differential privacy: noise in every local step, or as published."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import Batch
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import TRAINERS, ClientId, Reconstruction, Task
from privaudit.federation.uploads import UNTRAINED
from privaudit.tuning.prompts.gradients import RecordLosses
from privaudit.tuning.prompts.learning import context_losses, pair_texts, start_context
from privaudit.tuning.prompts.optimal_transport import (
    PromptPair,
    Transport,
    transported_record_losses,
)
from privaudit.tuning.prompts.private_training import PrivatePairTrainer


@TRAINERS.register("dp-fedotp")
@dataclass(frozen=True)
class DPFedOTP(PromptPair, PrivatePairTrainer):
    """FedOTP with DP noise on the shared and the private prompt.

    Modes: "sound" clips each record's gradients by both prompts jointly, in ``steps``
    steps a round, and runs every transport for a fixed number of iterations: the
    published stop rule is a mean over the batch, by which one record would change
    another's gradient. "published-paper" takes one step of one batch, and noises the
    prompts: the local one at its client, the mean of the global ones at the server.
    "published-code" has no transport: the two prompts are added and encoded once, so
    that both have the same gradient, and no parts of pictures are needed.

    Local update, upload and mean of a prompt that is sent and a part that is kept:
    ``PrivatePairTrainer.local_update`` and ``PrivatePairTrainer.aggregate``,
    tuning/prompts/private_training.py.

    Source: Li et al., "Global and local prompts cooperation via optimal transport for
    federated learning", CVPR 2024, algorithm 1; with noise as in Tran et al.,
    "Privacy-preserving personalized federated prompt learning for multimodal large
    language models", ICLR 2025, appendix on baselines; steps as in Abadi et al., "Deep
    learning with differential privacy", CCS 2016, algorithm 1.

    The published rate is 0.001 on ViT-B/16; the default suits the embedded model.
    """

    usual_rounds: ClassVar[int] = 20
    shared: ClassVar[str] = "global"

    @property
    def image_tokens(self) -> bool:  # type: ignore[override]
        """Whether the mode needs the parts of pictures: ask an instance."""
        return self.mode != "published-code"

    @property
    def transport(self) -> Transport:
        """The problem that is solved for each picture and class."""
        return Transport(self.entropy, self.mass, self.iterations, stop="never")

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random global prompt, and the code's momentum."""
        return self.begin({"global": start_context(task, seeds)})

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a random local prompt of the client's own, and the code's momentum."""
        return self.begin({"local": start_context(task, seeds, client)})

    def losses(self, task: Task) -> RecordLosses:
        """Return cross-entropies by transport, or of the sum of both prompts."""

        def by_transport(prompts: Stacked, batch: Batch) -> Tensor:
            texts = pair_texts(task, prompts)
            return transported_record_losses(task, texts, batch, self.transport)

        def of_sum(prompts: Stacked, batch: Batch) -> Tensor:
            return context_losses(task, prompts["global"] + prompts["local"], batch)

        return of_sum if self.mode == "published-code" else by_transport

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release both prompts, which transport needs apart, or the code's sum."""
        if self.mode == "published-code":
            return {"context": received["global"] + kept["local"]}
        return {"global": received["global"], "local": kept["local"]}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's last upload, or what is shared, in both prompts' places.

        As fedotp's rebuild, which says why. In "published-code" an upload is the
        gradient of the local prompt too: whoever sees it integrates it.
        """
        shared, is_seen = self.shared_part(view, client), view.sees_updates_of(client)
        hidden = "the client's local prompt"
        if self.mode != "published-code":
            lacks = (hidden,) if is_seen else (hidden, UNTRAINED)
            return Reconstruction({"global": shared, "local": shared}, lacks)
        if not is_seen:
            return Reconstruction({"context": shared}, (hidden,))
        missing = ["the local prompt's random start"]
        if self.epsilon is not None:
            missing.append("the noise on the local prompt")
        context = shared + self.integrated(view, client)
        return Reconstruction({"context": context}, tuple(missing), 0, True)
