"""PromptFL with differential privacy: noise in every local step, or as published."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, numbers_in
from privaudit.federated.batches import Batch
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
from privaudit.federated.transcripts.threat_models import View
from privaudit.privacy.events import on_grid
from privaudit.tuning.prompts.learning import start_context
from privaudit.tuning.prompts.private_prompts import PrivateLocalTrainer, context_losses


@TRAINERS.register("dp-promptfl")
@dataclass(frozen=True)
class DPPromptFL(PrivateLocalTrainer):
    """PromptFL with DP noise on the clients' training.

    The average is plain, as DP-FPL's appendix has it: a weight would be a size.

    Modes: "sound": ``steps`` steps of DP-SGD a round; the upload is what they give, so
    epsilon holds against the server and everyone else. "published-paper": one clipped
    step on one batch, then noise on the prompt before it is sent. The published
    standard deviation is meant for gradients; a prompt moves only by the rate times as
    much, so that far more is proved than claimed (and little is learned).
    "published-code": clients send the clipped gradient with noise, the server adds its
    own, 1 / N as large, to the mean, and runs SGD with momentum 0.9 and weight decay
    5e-4. What is certified counts the clients' noise only.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1; with noise as in Tran et
    al., "Privacy-preserving personalized federated prompt learning for multimodal large
    language models", ICLR 2025, appendix on baselines; steps as in Abadi et al., "Deep
    learning with differential privacy", CCS 2016, algorithm 1.

    The published rate is 0.001 on ViT-B/16; the default suits the embedded model.
    """

    accepts_gradient_canaries: ClassVar[Literal[True]] = True

    usual_rounds: ClassVar[int] = 20
    reconstructs_from_all_rounds: ClassVar[bool] = True

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context, and the code's momentum."""
        return self.begin({"context": start_context(task, seeds)})

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the context to everyone."""
        return {"context": server["context"]}

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Send the trained context, or the code's gradient; no weight and no size."""

        def record_losses(parameters: Stacked, batch: Batch) -> Tensor:
            return context_losses(task, parameters["context"], batch)

        parties, std = len(at.participants), self.noise_std(task)
        if self.mode == "sound":
            trained, loss = self.train(task, cohort, received, record_losses, at)
            events = self.steps_event(task, parties)
            events = on_grid(events, self.grid(std, at), numbers_in(trained))
            return LocalResult(trained, {}, loss, events)
        reach = 0.0  # nothing bounds a prompt
        if self.mode == "published-paper":
            clean, loss = self.train(task, cohort, received, record_losses, at)
            events = self.prompt_event(task, "global", "client", parties)
        else:
            gradients, loss = self.gradients(task, cohort, received, record_losses, at)
            clean, reach = {"gradient": gradients["context"]}, self.clip_norm
            events = self.gradient_event(task, "global", "client", parties)
        unit = self.event_unit(task)
        sent = self.add_noise(clean, std, "noise", cohort, at, "global", unit, reach)
        events = on_grid(events, self.grid(std, at, reach), numbers_in(clean))
        return LocalResult(sent, {}, loss, events)

    def aggregate(
        self,
        task: Task,
        server: Tensors,
        inbox: Inbox,
        at: Round,
    ) -> tuple[Tensors, Events]:
        """Average the contexts; in "published-code" step along the noised gradient.

        The server's noise is no event of its own: it comes on top of what is certified.
        """
        parties = len(at.participants)
        if self.mode != "published-code":
            return {"context": inbox["context"] / parties}, ()
        mean = inbox["gradient"] / parties
        std = self.noise_std(task) / parties
        noised = self.noised_by_server(mean, std, at)
        return self.descend(server, {"context": noised}), ()

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the average, drawn towards the client by all of its uploads.

        A round's upload tells of one small and noisy sample; what a client did in all
        rounds adds up to more. Of that, the average holds 1 / N; the whole of it would
        overshoot. 1 / sqrt(N) was measured to be best, or close, on the digits.
        """
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
        shared = view.last_broadcast(client).tensors["context"]
        if not view.sees_updates_of(client):
            missing = ("the client's own training",)
            return Reconstruction({"context": shared}, missing)
        last = view.last_sum
        parties = last.parties if last else len(task.clients)
        share = parties**-0.5 - 1 / parties
        return Reconstruction(
            {"context": shared + share * self._own_moves(view, client)}
        )

    def _own_moves(self, view: View, client: ClientId) -> Float[Tensor, "tokens width"]:
        """Return the sum of what each upload would make of the prompt by itself."""
        if self.mode == "published-code":
            return self.integrated(view, client)
        return torch.stack(view.moves_of(client, "context")).sum(dim=0)
