"""Local prompt tuning: every client learns its own prompt, without federation."""

from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.threat_models import View
from privaudit.federated.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federated.weighted_mean import UNTRAINED
from privaudit.tuning.transformers.prompt_tuning import PromptTuner


@TRAINERS.register("fedpt-local")
@dataclass(frozen=True)
class FedPTLocal(PromptTuner):
    """Each client trains the common start on its own records, and sends nothing.

    Source: the baseline "local prompt tuning" of "Federated prompt tuning for
    efficient and privacy-preserving adaptation of foundation models", section 2.5.
    """

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Train the client's own parameters further, or first what it received."""
        trained, loss = self.train(task, cohort, kept or received, at)
        return LocalResult({}, trained, loss)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Change nothing: nothing was sent."""
        return server, ()

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return what was released, or the start where nothing was."""
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
        return Reconstruction(view.last_broadcast(client).tensors, (UNTRAINED,))
