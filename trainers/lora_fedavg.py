"""FedAvg of low-rank adapters: every client trains and sends all of them."""

from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.transformers.lora import LoraTrainer


@TRAINERS.register("lora-fedavg")
@dataclass(frozen=True)
class LoraFedAvg(LoraTrainer):
    """LoRA with FedAvg: the server averages A and B separately.

    The mean of products is not the product of means; so it is published. A client's
    personal model is what it last trained, and a server has that from its last upload.
    Pairs start as ``LoraTrainer.start`` draws them, tuning/transformers/lora.py; means
    are weighted by shard sizes: ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: Zhang et al., "Towards building the federatedGPT: federated instruction
    tuning" (FedIT), ICASSP 2024, algorithm 1.
    """

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what was received, send it weighted by shard size, and keep it."""
        trained, loss = self.train(task, cohort, received, at)
        return LocalResult(weighted_upload(cohort, trained), trained, loss)
