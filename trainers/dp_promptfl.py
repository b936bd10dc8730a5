"""PromptFL with differential privacy: noise in every local step, or as published."""

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, numbers_in
from privaudit.federation.batches import Batch, epochs_of_batches
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
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
from privaudit.privacy.clipping import reach_of_steps
from privaudit.privacy.events import GaussianNoise, on_grid
from privaudit.tuning.optimiser import ADDED, ALL_BUT_MOMENTUM, Optimiser
from privaudit.tuning.prompts.learning import start_context
from privaudit.tuning.prompts.private_training import (
    PrivateLocalTrainer,
    losses_by_context,
)


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

    With ``epochs``, the published modes train as PromptFL does: whole passes over the
    shard, each step's mean gradient clipped, and noise once on what is sent: the
    prompt, or in "published-code" what it moved, over the rate: the sum of plain steps'
    gradients. So pFedMoAP's table 6 has its baselines. No record's share in that is
    bounded by itself; all steps together lead no farther than reach_of_steps, and one
    record changes them by twice that, which is what is certified.

    With ``mu``, it is FedProx: mu (p - p_server) is added to each local step's gradient
    after clipping and, in "sound", after noise. The server's prompt is known, and no
    record enters the term but through p. In "sound" it is post-processing and costs
    nothing; in the published modes it draws back what the records have moved, so that
    the reach, and with it the sensitivity, is smaller: S steps of rate r lead to
    r C (1 + q + ... + q^(S - 1)), q = |1 - r mu|. A client's first step has no pull.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1; with noise as in Tran et
    al., "Privacy-preserving personalized federated prompt learning for multimodal large
    language models", ICLR 2025, appendix on baselines; steps as in Abadi et al., "Deep
    learning with differential privacy", CCS 2016, algorithm 1; epochs as in Luo et al.,
    "Mixture of experts made personalized: federated prompt learning for vision-language
    models", ICLR 2025, appendix C.2; the proximal term of Li et al., "Federated
    optimization in heterogeneous networks", MLSys 2020, algorithm 2.

    The published rate is 0.001 on ViT-B/16; the default suits the embedded model.

    Attributes:
        epochs: Local passes over the shard in each round, in the published modes; 0 is
            one step on one batch. Published with pFedMoAP: 5.
        mu: Strength of FedProx' proximal term, at least 0; 0 is PromptFL. Published 0.5.
    """

    accepts_gradient_canaries: ClassVar[Literal[True]] = True

    usual_rounds: ClassVar[int] = 20
    reconstructs_from_all_rounds: ClassVar[bool] = True
    fixed_as_published: ClassVar[tuple[str, ...]] = ALL_BUT_MOMENTUM

    epochs: Annotated[int, Field(ge=0), ADDED] = 0
    mu: Annotated[float, Field(ge=0, allow_inf_nan=False), ADDED] = 0.0

    @model_validator(mode="after")
    def _check_epochs(self) -> "DPPromptFL":
        if self.epochs and self.mode == "sound":
            raise ConfigError(
                f'epochs = {self.epochs} was requested in mode "sound", whose local '
                "steps have samples of their own. Say how many with steps"
            )
        if self.epochs and self.clip == "sample":
            raise ConfigError(
                f'epochs = {self.epochs} was requested with clip = "sample", but what a '
                "record moves in one step, other records' gradients follow in the next. "
                'Leave clip out, or use mode "sound"'
            )
        return self

    def single_step(self) -> Any:
        """Return the same trainer with one noiseless step on all records."""
        return replace(super().single_step(), epochs=0)

    @property
    def step_optimiser(self) -> Optimiser:
        """What takes local steps; the code's momentum is the server's."""
        return Optimiser() if self.mode == "published-code" else self.optimiser

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context, and the code's momentum."""
        return self.begin({"context": start_context(task, seeds)})

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Send the trained context, or the code's gradient; no weight and no size."""
        parties, std = len(at.participants), self.noise_std(task)
        if self.mode == "sound":
            trained, loss = self.train(
                task, cohort, received, losses_by_context(task), at
            )
            events = self.steps_event(task, parties)
            events = on_grid(events, self.grid(std, at), numbers_in(trained))
            return LocalResult(trained, {}, loss, events)
        clean, loss = self._without_noise(task, cohort, received, at)
        # Nothing bounds a prompt but the published code.
        reach = self._reach(task) if self.mode == "published-code" else 0.0
        unit = self.event_unit(task)
        sent = self.add_noise(clean, std, "noise", cohort, at, "global", unit, reach)
        events = self._published_events(task, parties)
        events = on_grid(events, self.grid(std, at, reach), numbers_in(clean))
        return LocalResult(sent, {}, loss, events)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
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

    def local_batches(
        self, task: Task, cohort: Cohort, at: Round
    ) -> Iterator[tuple[Round, Batch, Bool[Tensor, " k"]]]:
        """Yield the batches of whole passes; without epochs, as other trainers do."""
        if not self.epochs:
            yield from super().local_batches(task, cohort, at)
            return
        batches = epochs_of_batches(
            cohort, at, epochs=self.epochs, batch_size=self.batch
        )
        unnoted = replace(at, trace=None)  # the mechanism is one for all steps
        for batch in batches.of(cohort):
            yield unnoted, batch, batch.mask.any(dim=1)

    def pull(self, parameters: Stacked, start: Stacked) -> dict[str, Tensor]:
        """Return the proximal term's gradient, mu (p - p_server)."""
        if not self.mu:
            return {}
        return {"context": self.mu * (parameters["context"] - start["context"])}

    def _without_noise(
        self, task: Task, cohort: Cohort, received: Stacked, at: Round
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Return what is sent in a published mode, before its noise, and the loss."""
        in_code = self.mode == "published-code"
        if in_code and not self.epochs:
            found, loss = self.gradients(
                task, cohort, received, losses_by_context(task), at
            )
            return {"gradient": found["context"]}, loss
        trained, loss = self.train(task, cohort, received, losses_by_context(task), at)
        moved = trained["context"] - received["context"]
        if in_code:
            moved = -moved / self.learning_rate
        if self.epochs and self.clips and at.trace is not None:
            at.trace.clipped("global", "batch", {"moved": moved})
        return ({"gradient": moved} if in_code else trained), loss

    def _published_events(self, task: Task, parties: int) -> Events:
        """Describe the noise on one clipped step, or on all that a round's steps move."""
        if not self.epochs:
            return self.noise_event(task, "global", "client", parties)
        if not self.clips:
            return ()
        reach = self._reach(task)
        noise = GaussianNoise(self.noise_std(task) / reach, reach)
        return (self.event(task, "global", noise, 1, "client", parties),)

    def _reach(self, task: Task) -> float:
        """Return how long what a round moves can be, in the units of what is sent."""
        if not self.epochs:
            return self.clip_norm
        steps = self.epochs * math.ceil(max(task.candidates.values()) / self.batch)
        rate, momentum = self.learning_rate, self.step_optimiser.momentum
        reach = reach_of_steps(steps, rate, self.clip_norm, momentum, self.mu)
        return reach / rate if self.mode == "published-code" else reach

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the average, drawn towards the client by all of its uploads.

        A round's upload tells of one small and noisy sample; what a client did in all
        rounds adds up to more. Of that, the average holds 1 / N; the whole of it would
        overshoot. 1 / sqrt(N) was measured to be best, or close, on the digits. N is of
        the client's rounds: the mean number of uploads that arrived.
        """
        shared = view.last_broadcast(client).tensors["context"]
        if not view.sees_updates_of(client):
            missing = ("the client's own training",)
            return Reconstruction({"context": shared}, missing)
        parties = fmean(view.parties_of(client))
        share = parties**-0.5 - 1 / parties
        return Reconstruction(
            {"context": shared + share * self._own_moves(view, client)}
        )

    def _own_moves(self, view: View, client: ClientId) -> Float[Tensor, "tokens width"]:
        """Return the sum of what each upload would make of the prompt by itself."""
        if self.mode == "published-code":
            return self.integrated(view, client)
        return torch.stack(view.moves_of(client, "context")).sum(dim=0)
