"""FedProx on prompts: PromptFL whose clients are pulled back to the server's prompt."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.optimiser import pull_to
from privaudit.tuning.prompts.learning import LocalSgd


@TRAINERS.register("prompt-fedprox")
@dataclass(frozen=True)
class PromptFedProx(LocalSgd):
    """FedProx on prompts: loss plus mu / 2 |p - p_server|^2.

    The first prompt is drawn by ``LocalSgd.start``, tuning/prompts/learning.py.

    The term has a gradient here. In four published repositories it is detached, so that
    their rows for FedProx are PromptFL's: take ``mu = 0`` for those. The server takes
    the mean weighted by shard sizes: ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020,
    algorithm 2, on PromptFL's prompt.

    Attributes:
        mu: Strength of the proximal term, at least 0; 0 is PromptFL. Published: 0.5.
    """

    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the received context near itself, and send it weighted."""
        to_server = pull_to(received, self.mu)
        contexts, loss = self.train(task, cohort, received["context"], at, to_server)
        return LocalResult(weighted_upload(cohort, {"context": contexts}), {}, loss)
