"""What trainers share whose server averages prompts, weighted by shard sizes."""

from collections.abc import Sequence

import pydantic.dataclasses

from privaudit.prompts.learning import LocalSgd, start_context
from privaudit.seeds import Seeds
from privaudit.tensors import Stacked, Tensors
from privaudit.threats import View
from privaudit.trainer import (
    ClientId,
    Events,
    Inbox,
    PublicTask,
    Rebuilt,
    Round,
)
from privaudit.weighing import UNTRAINED, last_sent, with_means


@pydantic.dataclasses.dataclass(frozen=True)
class AveragingTrainer(LocalSgd):
    """A trainer whose clients send the prompt that they trained, as in PromptFL.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1.
    """

    def start(self, task: PublicTask, seeds: Seeds) -> Tensors:
        """Return a random context."""
        return {"context": start_context(task, seeds)}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the averages to everyone."""
        return dict(server)

    def aggregate(
        self, task: PublicTask, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the means weighted by shard sizes; nobody's records change nothing."""
        return with_means(server, inbox), ()

    def release(
        self,
        task: PublicTask,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Release the averaged prompt: there is no personal part."""
        return {"context": received["context"]}

    def rebuild(self, task: PublicTask, view: View, client: ClientId) -> Rebuilt:
        """Return the client's last upload where it is seen, else the average."""
        if view.has_release_of(client):
            return Rebuilt(view.release_of(client).tensors)
        sent = last_sent(view, client)
        if sent is not None:
            return Rebuilt(sent)
        shared = view.last_broadcast(client).tensors["context"]
        return Rebuilt({"context": shared}, (UNTRAINED,))
