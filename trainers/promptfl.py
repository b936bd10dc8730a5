"""PromptFL: federated averaging of one shared prompt."""

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.prompts.learning import LocalSgd


@TRAINERS.register("promptfl")
@dataclass(frozen=True)
class PromptFL(LocalSgd):
    """PromptFL: clients train the server's prompt, and the server averages (FedAvg).

    ``LocalSgd.start`` draws the first prompt, tuning/prompts/learning.py. A client sends
    its prompt times its number of records, and that number, so that the server needs
    only the sums of both: ``BaseTrainer.aggregate``, federation/trainer.py. Released is
    the average: there is no personal part. A server's rebuild is the client's last
    upload: its model after local training, exactly.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1.
    """

    accepts_gradient_canaries: ClassVar[Literal[True]] = True

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the received context, and send it weighted by the shard's size."""
        contexts, loss = self.train(task, cohort, received["context"], at)
        return LocalResult(weighted_upload(cohort, {"context": contexts}), {}, loss)
