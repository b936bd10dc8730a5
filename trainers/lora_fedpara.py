"""FedPara with private pairs: the shared product times one plus a private product."""

from pydantic.dataclasses import dataclass

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.transformers.lora import (
    LoraTrainer,
    chosen,
    factor_of,
    start_pairs,
)

PRIVATE = ("A2", "B2")


@TRAINERS.register("lora-fedpara")
@dataclass(frozen=True)
class LoraFedPara(LoraTrainer):
    """LoRA with pFedPara: a layer changes by (B A) ∘ (1 + B2 A2); A2 and B2 stay local.

    Whoever lacks a client's private pair can use the shared product alone: the server's
    own model, and its best guess at a client's. Shared pairs start as
    ``LoraTrainer.start`` draws them, tuning/transformers/lora.py; means are weighted by
    shard sizes: ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: Hyeon-Woo, Ye-Bin, Oh, "FedPara: low-rank Hadamard product for
    communication-efficient federated learning", ICLR 2022, section 2.3 (pFedPara), on
    adapters as in FedRand, appendix A.3. The 1 is pFedPara's: a plain product of two
    pairs whose Bs begin at zero has no gradient, ever.
    """

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a private pair for each layer, which changes nothing as yet."""
        stream = seeds.stream("private adapters", client=client)
        return start_pairs(task.language.targets, self.rank, stream, suffix="2")

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train both pairs; send the shared one, weighted by the shard's size."""
        trained, loss = self.train(task, cohort, {**received, **kept}, at)
        shared = chosen(trained, lambda name: not _is_private(name))
        return LocalResult(
            weighted_upload(cohort, shared), chosen(trained, _is_private), loss
        )

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the shared product; the private one is in no message."""
        reconstructed = super().rebuild(task, view, client)
        missing = (*reconstructed.missing, "the client's private pair")
        return Reconstruction(reconstructed.model, missing, estimated=True)


def _is_private(name: str) -> bool:
    return factor_of(name) in PRIVATE
