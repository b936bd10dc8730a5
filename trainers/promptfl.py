"""PromptFL: federated averaging of one shared prompt."""

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import (
    TRAINERS,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Round,
    Task,
)
from privaudit.federation.uploads import apply_mean, weighted_upload
from privaudit.tuning.prompts.learning import LocalSgd, start_context


@TRAINERS.register("promptfl")
@dataclass(frozen=True)
class PromptFL(LocalSgd):
    """PromptFL: clients train the server's prompt, and the server averages (FedAvg).

    A client sends its prompt times its number of records, and that number, so that the
    server needs only the sums of both. Released is the average: there is no personal
    part. A server's rebuild is the client's last upload: its model after local
    training, exactly.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1.
    """

    accepts_gradient_canaries: ClassVar[Literal[True]] = True

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context."""
        return {"context": start_context(task, seeds)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the received context, and send it weighted by the shard's size."""
        contexts, loss = self.train(task, cohort, received["context"], at)
        return LocalResult(weighted_upload(cohort, {"context": contexts}), {}, loss)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the mean of the contexts; nobody's records change nothing."""
        return apply_mean(server, inbox), ()
