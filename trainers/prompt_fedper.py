"""FedPer on prompts: the first tokens are shared, the others stay with the client."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.devices import here
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import Batch
from privaudit.federation.on_device import computes
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federation.uploads import UNTRAINED, last_sent, weighted_upload
from privaudit.tuning.prompts.learning import LocalSgd, prompt_losses, start_context

ADVERSARY = Seeds(0).child("rebuild")  # its own draws, unrelated to any run's


@TRAINERS.register("prompt-fedper")
@dataclass(frozen=True)
class PromptFedPer(LocalSgd):
    """FedPer on prompts: send the first context tokens, keep the others.

    The server takes the mean weighted by shard sizes: ``BaseTrainer.aggregate``,
    federation/trainer.py.

    Source: Arivazhagan et al., "Federated learning with personalization layers",
    arXiv 1912.00818, 2019, with tokens of a prompt in place of layers.

    Attributes:
        shared_tokens: m, how many tokens are sent, at least 1; all of them (or more) is
            PromptFL. Published: 8 of 16.
    """

    shared_tokens: Annotated[int, Field(ge=1)] = 8

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return random shared tokens."""
        return {"shared": start_context(task, seeds)[: self.shared_tokens]}

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return random private tokens of the client's own, if any are private."""
        private = start_context(task, seeds, client)[self.shared_tokens :]
        return {"private": private} if len(private) else {}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train all tokens together, and send the shared ones, weighted."""
        contexts, loss = self.train(task, cohort, _join(received, kept), at)
        shared, private = contexts.tensor_split([received["shared"].shape[1]], dim=1)
        private_state = {"private": private} if kept else {}
        return LocalResult(
            weighted_upload(cohort, {"shared": shared}), private_state, loss
        )

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the averaged tokens, followed by the client's own."""
        return {"context": _join(received, kept)}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's sent tokens, else the shared ones, and guess the others.

        Private tokens are trained on public records behind those that were seen, as the
        client trains them on its own.
        """
        sent = last_sent(view, client)
        missing: tuple[str, ...] = () if sent else (UNTRAINED,)
        seen = (sent or view.last_broadcast(client).tensors)["shared"]
        if len(seen) == task.prompts.context_tokens:
            return Reconstruction({"context": seen}, missing)
        missing += ("the client's private tokens",)
        return Reconstruction(
            {"context": self._complete(task, seen, client)}, missing, 0, True
        )

    @computes
    def _complete(
        self, task: Task, seen: Float[Tensor, "shared width"], client: ClientId
    ) -> Float[Tensor, "tokens width"]:
        """Return the tokens with private ones that public records teach."""
        shared = seen.unsqueeze(0)

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            return prompt_losses(task, _join({"shared": shared}, parameters), batch)

        start = self.start_client(task, client, ADVERSARY)["private"].unsqueeze(0)
        public = Cohort.of(["public"], [task.public.to(here())])
        at = Round(0, ADVERSARY, ("public",))
        steady = replace(
            self, schedule="constant", warmup_rounds=0
        )  # outside of rounds
        learned, _ = steady.fit(task, public, {"private": start}, objective, at)
        return _join({"shared": shared}, learned)[0]


def _join(shared: Stacked, private: Stacked) -> Float[Tensor, "k tokens width"]:
    """Return whole contexts."""
    parts = [shared["shared"], *private.values()]
    return torch.cat(parts, dim=1)
