"""Local prompt tuning: every client learns its own prompt, without federation."""

from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.tuning.transformers.prompt_tuning import PromptTuner


@TRAINERS.register("fedpt-local")
@dataclass(frozen=True)
class FedPTLocal(PromptTuner):
    """Local prompt tuning from a common initialisation; nothing is sent or combined.

    ``PromptTuner.start`` draws that, tuning/transformers/prompt_tuning.py;
    ``BaseTrainer.aggregate`` leaves it as it is, federation/trainer.py.

    Source: the baseline "local prompt tuning" of "Federated prompt tuning for
    efficient and privacy-preserving adaptation of foundation models", section 2.5.
    """

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the client's own parameters further, or first what it received."""
        trained, loss = self.train(task, cohort, kept or received, at)
        return LocalResult({}, trained, loss)
