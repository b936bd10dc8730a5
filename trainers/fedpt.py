"""FedPT: prompts of any transformer, learned by clients and averaged."""

from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.tuning.transformers.prompt_tuning import AveragedTuner


@TRAINERS.register("fedpt")
@dataclass(frozen=True)
class FedPT(AveragedTuner):
    """FedPT: prompt tuning of any transformer, averaged by the server.

    ``PromptTuner.start`` draws what is learned, ``AveragedTuner.aggregate`` takes the
    mean weighted by shard sizes: both in tuning/transformers/prompt_tuning.py.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", sections 2.1 and 2.2, with plain averaging.
    """

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what was received, and send it or its deltas, weighted by shard size."""
        trained, loss = self.train(task, cohort, received, at)
        return LocalResult(self.upload(cohort, received, trained), {}, loss)
