"""PromptFL: federated averaging of one shared prompt."""

from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from privaudit.prompts.learning import LocalSgd, start_context
from privaudit.seeds import Seeds
from privaudit.tensors import Stacked, Tensors
from privaudit.threats import View
from privaudit.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    PublicTask,
    Rebuilt,
    Round,
)


@TRAINERS.register("promptfl")
@dataclass(frozen=True)
class PromptFL(LocalSgd):
    """Every client trains the prompt it receives; the server averages what comes back.

    A client sends its prompt times its number of records, and that number, so that the
    server needs only the sums of both.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1.
    """

    def start(self, task: PublicTask, seeds: Seeds) -> Tensors:
        """Return a random context."""
        return {"context": start_context(task, seeds)}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the averaged context to everyone."""
        return {"context": server["context"]}

    def local_update(
        self,
        task: PublicTask,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Train the received context, and send it weighted by the shard's size."""
        contexts, loss = self.train(task, cohort, received["context"], at)
        weight = cohort.sizes.to(contexts.dtype)
        sent = {"context": contexts * weight[:, None, None], "weight": weight}
        return LocalResult(sent, {}, loss)

    def aggregate(
        self,
        task: PublicTask,
        server: Tensors,
        inbox: Inbox,
        at: Round,
    ) -> tuple[Tensors, Events]:
        """Return the mean weighted by shard sizes; nobody's records change nothing."""
        if inbox["weight"] == 0:
            return server, ()
        return {"context": inbox["context"] / inbox["weight"]}, ()

    def release(
        self,
        task: PublicTask,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Release the averaged prompt: PromptFL has no personal part."""
        return {"context": received["context"]}

    def rebuild(self, task: PublicTask, view: View, client: ClientId) -> Rebuilt:
        """Return the client's last upload where it is seen, else the average.

        The upload is the client's model after local training, exactly.
        """
        if view.has_release_of(client):
            return Rebuilt(view.release_of(client).tensors)
        if view.sees_updates_of(client):
            update = view.updates_of(client)[-1]
            if update.tensors["weight"] > 0:
                return Rebuilt(
                    {"context": update.tensors["context"] / update.tensors["weight"]}
                )
        last = view.last_broadcast(client)
        return Rebuilt(
            {"context": last.tensors["context"]},
            missing=("the client's own training in its last round",),
        )
