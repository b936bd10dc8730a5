"""pFedMoAP with noise on the prompts that are sent; the gate stays without."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked, numbers_in
from privaudit.federation.batches import Batch, Objective, epochs_of_batches
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federation.transcript import Message
from privaudit.privacy.clipping import clip_each, reach_of_steps
from privaudit.privacy.events import Claim, GaussianNoise, MechanismEvent
from privaudit.tuning.optimiser import ALL_BUT_MOMENTUM, Optimiser
from privaudit.tuning.prompts.experts import PromptExperts
from privaudit.tuning.prompts.private_training import (
    PrivateLocalTrainer,
    losses_by_context,
)

_FOR_AN_UPLOAD = (
    "noise by an accountant (opacus PRV or the exact Gaussian; see the certificate), "
    "for a record of what a client sends, not of what it releases"
)
_AS_PUBLISHED = (
    "epsilon and delta as published; how noise follows from them was not: here "
    "sqrt(T ln(1/delta)) / epsilon * C / B on the prompt that is sent"
)

SAYS_LITTLE = 0.1  # expected records that delta may give away entirely


@TRAINERS.register("dp-pfedmoap")
@dataclass(frozen=True)
class DPPFedMoAP(PromptExperts, PrivateLocalTrainer):
    """pFedMoAP with DP noise on the uploads, and so on averages and experts.

    Gate and personal prompt are trained without noise, so nothing can be proved about a
    *released* model; what is proved holds for whoever sees uploads, averages, experts.

    Modes: "sound": what is sent is trained apart from the gate, on the prompt's own
    cross-entropy, by ``steps`` steps of DP-SGD a round (through a gate without noise,
    each record's gradient would depend on all others, and no clipping would bound
    that); beside it the client trains a personal prompt and its gate as in pFedMoAP.
    Uploads are averaged plainly: a weight would be a size.
    "published-paper": one training; in each step the prompt's mean gradient is clipped;
    the prompt is noised once, when it is sent, and averaged plainly too. Published are
    delta 0.05 and epsilon 25 and 50, but neither clip norm, nor sigma, nor what a unit
    of privacy is. Taken here: clip norm C 10, standard deviation sqrt(T ln(1 / delta))
    / epsilon * C / B on the prompt itself, as the other baselines have it after Tran et
    al. 2025, and one record of one client. What that proves is far from what is
    claimed: S clipped steps move a prompt by S times rate times C at the most (with
    momentum more: reach_of_steps), and one record by twice that.
    There is no "published-code", and no gate that is sent. ``PromptExperts.start``,
    its broadcast of experts, ``PromptExperts.aggregate`` by weight into the pool, and
    release: tuning/prompts/experts.py.

    Source: Luo et al., "Mixture of experts made personalized: federated prompt learning
    for vision-language models", ICLR 2025, appendix C.2, table 6; steps as in Abadi et
    al., "Deep learning with differential privacy", CCS 2016, algorithm 1.

    Attributes:
        personal_learning_rate: Step size of the personal prompt, above 0; in "published-paper" it
            is what is sent. Published 0.002.
        epochs: Local passes in which prompt and gate are trained; published 5.
        optimizer, momentum, weight_decay, optimizer_state: Of these; the steps of
            DP-SGD are plain. A schedule is for both.
    """

    reconstructs_from_all_rounds: ClassVar[bool] = True
    fixed_as_published: ClassVar[tuple[str, ...]] = ALL_BUT_MOMENTUM

    personal_learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.0005
    epochs: Annotated[int, Field(ge=1)] = 50
    momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9

    @property
    def step_optimiser(self) -> Optimiser:
        """Plain SGD: what is kept has the optimiser, not what is sent."""
        return Optimiser()

    def single_step(self) -> Any:
        """Return the same trainer with one noiseless step on all records."""
        return replace(super().single_step(), epochs=1)

    @model_validator(mode="after")
    def _check_mode(self) -> "DPPFedMoAP":
        if self.mode == "published-code":
            raise ConfigError(
                'mode = "published-code" was requested, but dp-pfedmoap knows "sound" '
                'and "published-paper" only. Use one of them'
            )
        if self.clip == "sample" and self.mode == "published-paper":
            raise ConfigError(
                'clip = "sample" was requested in mode "published-paper", which clips '
                'the mean over a batch. Leave it out, or use mode "sound"'
            )
        if self.gate == "aggregated":
            raise ConfigError(
                'gate = "aggregated" was requested, which sends the gate without any '
                'noise. Use "attention" or "linear", whose gates stay'
            )
        return self

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what is kept; send a prompt of its own training, or its noised copy."""
        parameters, objective = self.begin_mixture(task, received, kept)
        size = 0  # whole shards, or batches
        if self.mode == "published-paper":
            size, objective = self.batch, self._with_clipping(objective)
        batches = epochs_of_batches(cohort, at, epochs=self.epochs, batch_size=size)
        rates = self.rates(parameters, self.personal_learning_rate)
        trained, loss = self.optimise(
            task, cohort, parameters, batches, objective, rates, at
        )
        sent = dict(trained)
        if self.mode == "sound":
            start = {"context": received["context"]}
            apart, _ = self.train(task, cohort, start, losses_by_context(task), at)
            sent |= apart
        else:
            clean = {"context": trained["context"]}
            std = self.noise_std(task)
            sent |= self.add_noise(clean, std, "noise", cohort, at, "upload")
            if at.trace is not None and self.clips:
                moved = {"context": clean["context"] - received["context"]}
                at.trace.clipped("upload", "batch", moved)
        ones = torch.ones(len(cohort))
        return LocalResult(
            self.upload(sent, ones),
            self.keep(kept, trained),
            loss,
            self._events(task, at, numbers_in({"context": sent["context"]})),
        )

    def _with_clipping(self, objective: Objective) -> Objective:
        """Return the objective with each client's gradient by the prompt clipped."""

        def clip(gradient: Tensor) -> Tensor:
            return clip_each({"context": gradient}, self.clip_norm)["context"]

        def clipped(parameters: Stacked, batch: Batch) -> Tensor:
            context = parameters["context"].clone()
            context.register_hook(clip)
            return objective({**parameters, "context": context}, batch)

        return clipped

    def _events(self, task: Task, at: Round, values: int) -> Events:
        """Describe what protects the upload, and that nothing protects the rest."""
        if not self.clips:
            return ()
        parties, grid = len(at.participants), self.grid(self.noise_std(task), at)
        if self.mode == "sound":
            (upload,) = self.steps_event(task, parties)
        else:
            reach = self._reach(task)
            noise = GaussianNoise(self.noise_std(task) / reach, reach)
            upload = self.event(task, "upload", noise, 1, "client", parties)
        bare = MechanismEvent(
            release="local",
            noise_multiplier=0.0,
            sensitivity=1.0,
            clip_norm=self.clip_norm,
            sampling_rate=1.0,
            sampling="fixed-batch",
            noise_at="none",
            parties=parties,
            per_record=False,  # the upload's bound holds whatever it is
        )
        return upload.on(grid, values), bare

    def _reach(self, task: Task) -> float:
        """Return how far a round's clipped steps can move a prompt, for any client."""
        batches = math.ceil(max(task.candidates.values()) / self.batch)
        steps, rate = self.epochs * batches, self.personal_learning_rate
        return reach_of_steps(steps, rate, self.clip_norm, self.momentum)

    def from_uploads(
        self, task: Task, view: View, client: ClientId, heard: Sequence[Message]
    ) -> Reconstruction:
        """Return the mean prompt, drawn towards the client by all of its uploads.

        In "sound" no gate shaped them, and each tells of some noisy samples only: what
        a client did in all rounds adds up to more, as in dp-promptfl.
        """
        if self.mode == "published-paper":
            reconstructed = super().from_uploads(task, view, client, heard)
            hidden = "the personal prompt, without the noise"
            return replace(reconstructed, missing=(*reconstructed.missing, hidden))
        shared = view.last_broadcast(client).tensors["context"]
        parties = fmean(view.parties_of(client))
        share = parties**-0.5 - 1 / parties
        moves = torch.stack(view.moves_of(client, "context"))  # each weighs 1
        drawn = shared + share * moves.sum(dim=0)
        missing = ("the personal prompt, which is not what is sent", "the gate")
        return Reconstruction({"context": drawn}, missing)

    def claim(self, task: Task) -> Claim:
        """Return epsilon for a record of an upload, and what delta is worth."""
        if self.epsilon is None:
            return Claim(delta=self.delta)
        source = _FOR_AN_UPLOAD if self.mode == "sound" else _AS_PUBLISHED
        return Claim(self.epsilon, self.delta, source + _worth(self.delta, task))


def _worth(delta: float, task: Task) -> str:
    """Say so where delta alone may give records away."""
    records = max(task.expected_members, 1.0)
    if delta * records <= SAYS_LITTLE:
        return ""
    return (
        f"; delta = {delta:g} is far above 1/n (here {1 / records:.2g}): giving away "
        f"about {delta * records:.1f} of a client's records would keep the promise"
    )
