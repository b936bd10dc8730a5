"""Tuning whose clients send all that they train, to be averaged."""

from typing import Literal

import pydantic.dataclasses

from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federated.transcripts.threat_models import View
from privaudit.federated.weighted_mean import WEIGHT, weighted_upload
from privaudit.tuning.transformers.prompt_tuning import PromptTuner


@pydantic.dataclasses.dataclass(frozen=True)
class AveragedTuner(PromptTuner):
    """Clients train the server's parameters, and the server averages what they send.

    Attributes:
        sends: "parameters", or their "deltas": by how much training moved them. A
            server that sent the one can tell the other, so neither hides more.
    """

    sends: Literal["parameters", "deltas"] = "parameters"

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what was received, and send it weighted by shard size."""
        trained, loss = self.train(task, cohort, received, at)
        if self.sends == "deltas":
            trained = {name: t - received[name] for name, t in trained.items()}
        return LocalResult(weighted_upload(cohort, trained), {}, loss)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the mean of what clients trained, weighted by shard sizes."""
        means, events = super().aggregate(task, server, inbox, at)
        if self.sends == "parameters" or means is server:
            return means, events
        return {name: t + means[name] for name, t in server.items()}, events

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return what the client last trained where it is seen, else the average."""
        reconstructed = super().reconstruct(task, view, client)
        if self.sends == "parameters" or not view.sees_updates_of(client):
            return reconstructed
        last = view.updates_of(client)[-1]
        if not last.tensors[WEIGHT] > 0:
            return reconstructed
        down = {m.round: m.tensors for m in view.broadcasts_to(client)}[last.round]
        return Reconstruction(
            {name: t + down[name] for name, t in reconstructed.model.items()}
        )
