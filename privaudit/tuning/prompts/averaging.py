"""What trainers share whose server averages prompts, weighted by shard sizes."""

from collections.abc import Sequence

import pydantic.dataclasses
import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.threat_models import View
from privaudit.federated.trainer import (
    ClientId,
    Events,
    Inbox,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federated.weighted_mean import UNTRAINED, apply_mean, last_sent
from privaudit.tuning.prompts.learning import LocalSgd, start_context


@pydantic.dataclasses.dataclass(frozen=True)
class AveragingTrainer(LocalSgd):
    """A trainer whose clients send the prompt that they trained, as in PromptFL.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1.
    """

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context."""
        return {"context": start_context(task, seeds)}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the averages to everyone."""
        return dict(server)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the means weighted by shard sizes; nobody's records change nothing."""
        return apply_mean(server, inbox), ()

    def release(
        self,
        task: Task,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Release the averaged prompt: there is no personal part."""
        return {"context": received["context"]}

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's last upload where it is seen, else the average."""
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
        sent = last_sent(view, client)
        if sent is not None:
            return Reconstruction(sent)
        shared = view.last_broadcast(client).tensors["context"]
        return Reconstruction({"context": shared}, (UNTRAINED,))


def pair_texts(task: Task, prompts: Stacked) -> Float[Tensor, "k prompts classes d"]:
    """Return the text features of each client's "global" and "local" prompt."""
    both = torch.stack([prompts["global"], prompts["local"]], dim=1)
    texts = task.prompts(both.flatten(0, 1))
    return texts.view(*both.shape[:2], *texts.shape[1:])
