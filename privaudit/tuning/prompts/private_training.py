"""Differential privacy of prompt trainers: modes, batches, clipping and noise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from jaxtyping import Float, Float64
from pydantic import Field, model_validator
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.streams import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.batches import Batch
from privaudit.federated.trainer import Cohort, Round, Task
from privaudit.privacy.accountant import noise_multiplier_for
from privaudit.privacy.budget import GaussianNoise
from privaudit.privacy.claim import Claim
from privaudit.privacy.clipping import clip_each, clip_records
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import MechanismEvent, NoiseAt, Release, sensitivity
from privaudit.privacy.noise import noise_std_published
from privaudit.tuning.optimiser import Optimised, Optimiser
from privaudit.tuning.prompts.gradients import (
    ContextGradients,
    fixed_batch,
    poisson_batch,
)
from privaudit.tuning.prompts.learning import PromptTrainer

_FOR_A_RECORD = (
    "noise by an accountant (opacus PRV or the exact Gaussian; see the certificate), "
    "for a record of the released model; with each client's own noise on what it sends "
    "also against the server"
)
_AS_PUBLISHED = "the published formula, sqrt(T ln(1/delta)) / epsilon * C / B"

OF_THE_CODE = Optimiser("sgd", momentum=0.9, weight_decay=5e-4)
EVERY_RECORD = 10**9  # a batch size beyond any shard's

Mode = Literal["sound", "published-paper", "published-code"]
Clip = Literal["sample", "batch"]
TensorSplit = Callable[[Tensor], dict[str, Tensor]]
Parts = tuple[Release, TensorSplit, float]


@pydantic.dataclasses.dataclass(frozen=True)
class PrivateTrainer(Optimised, PromptTrainer):
    """A prompt trainer that clips gradients and adds noise.

    Noise goes in before the optimiser: whatever that makes of a noised gradient, and
    remembers of it, is post-processing, and no accountant asks which one it is.

    Attributes:
        mode: "sound" is private with the epsilon that stands on it: Poisson samples,
            every record clipped, noise by an accountant. "published-paper" and
            "published-code" do what was published, whatever that proves.
        epsilon: Above 0. "sound": what an accountant certifies for a client's released
            model, and against the server where each client adds all of the noise.
            Published: what is put into the published formula. None is no noise, and no
            clipping either, except in "published-paper".
        delta: Delta of (epsilon, delta)-DP, in (0, 1).
        clip_norm: Largest norm of a record's (or batch's) gradient, above 0.
        clip: What is clipped: each record ("sample": "sound" always, "published-paper"
            on request, read so that its claimed sensitivity holds) or the mean over a
            batch ("batch", as published). By default the mode's own.
        batch_size: Records in a batch, at least 1: expected in "sound", exact in the
            others (a client with fewer takes all it has). By default the mode's own: 8,
            which suits small shards, and 32 as published.
    """

    mode: Mode = "sound"
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-5
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    clip: Clip | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_optimizer(self) -> "PrivateTrainer":
        if self.mode == "published-code":
            names = ("optimizer", "momentum", "weight_decay", "optimizer_state")
            self.refuse(
                names,
                'in mode "published-code", which runs SGD with momentum 0.9 and weight '
                "decay 5e-4, kept across rounds",
            )
        return self

    @model_validator(mode="after")
    def _check_clip(self) -> "PrivateTrainer":
        needed = {"sound": "sample", "published-code": "batch"}.get(self.mode)
        if needed and self.clip not in (None, needed):
            raise ConfigError(
                f"clip = {self.clip!r} was requested in mode {self.mode!r}, which "
                f'supports {needed!r} only. Leave it out, or use mode "published-paper"'
            )
        return self

    def single_step(self) -> Any:
        """Return the same trainer without noise, with every record in its batches."""
        return replace(self, epsilon=None, batch_size=EVERY_RECORD)

    @property
    def batch(self) -> int:
        """Records in a batch."""
        return self.batch_size or (8 if self.mode == "sound" else 32)

    @property
    def clips_records(self) -> bool:
        """Whether each record's gradient is clipped, not the batch's."""
        return self.mode == "sound" or self.clip == "sample"

    @property
    def is_noised(self) -> bool:
        """Whether there is an epsilon to be kept."""
        return self.epsilon is not None

    @property
    def clips(self) -> bool:
        """Whether anything is clipped at all."""
        return self.epsilon is not None or self.mode == "published-paper"

    @property
    def sums_clipped(self) -> bool:
        """Whether each record's own gradient is asked for, to be clipped."""
        return self.clips and self.clips_records

    def sampling_rate(self, task: Task) -> float:
        """Return the chance of a record to be in a Poisson sample: a public constant.

        Batch size over the members that a client has on average, at most 1. A client
        with more records takes larger samples; the rate must not depend on its size.
        """
        return min(1.0, self.batch / max(task.expected_members, 1.0))

    def divisor(self, task: Task) -> float:
        """Return what a client's gradients are divided by to give a mean: a constant.

        1 where they are a batch's mean already. Never the realised size of a sample.
        """
        if self.mode == "sound":
            return self.sampling_rate(task) * max(task.expected_members, 1.0)
        return float(self.batch) if self.clips_records else 1.0

    def event_unit(self, task: Task) -> float:
        """Return what 1 in a client's noised tensors is in the units of its events."""
        return 1.0

    def draw_batch(self, task: Task, cohort: Cohort, at: Round) -> Batch:
        """Draw this round's batch of every client."""
        if self.mode == "sound":
            rate = self.sampling_rate(task)
            return poisson_batch(cohort, at, rate)
        return fixed_batch(cohort, at, self.batch)

    def noise_multiplier(self, task: Task) -> float:
        """Return the multiplier of one release per round that spends all of epsilon.

        "sound": by the accountant, for the task's rounds. Published: sqrt(T ln(1 /
        delta)) / epsilon where records are clipped, and that over the batch size where
        batch means are: the formula takes a sensitivity for granted that those lack.

        Raises:
            ConfigError: The accountant proves no epsilon that low.
        """
        if self.epsilon is None:
            return 0.0
        if self.mode == "sound":
            rate = self.sampling_rate(task)
            return noise_multiplier_for(self.epsilon, self.delta, rate, task.rounds)
        of_means, _ = noise_std_published(
            self.epsilon, self.delta, task.rounds, 1.0, self.batch, clients=1
        )
        return of_means * self.divisor(task)

    def noise(
        self, like: Float[Tensor, "k ..."], grid: Grid, streams: Sequence[Stream]
    ) -> Float64[Tensor, "k ..."]:
        """Return each one's noise on a grid, from streams of the secret key."""
        return grid.noises(like.shape[1:], streams)

    def grid(self, std: float, at: Round, reach: float | None = None) -> Grid | None:
        """Return the grid for noise of a standard deviation; None without noise.

        ``reach``: As in :meth:`Grid.of`, of an upload that is added to others.
        """
        if std == 0:
            return None
        return (
            Grid.of(std) if reach is None else Grid.of(std, reach=reach, step=at.step)
        )

    def noised_by_server(self, total: Tensor, std: float, at: Round) -> Tensor:
        """Return what the server makes of a sum, or mean: it adds noise of its own."""
        grid = self.grid(std, at)
        if grid is None:
            return total
        drawn = self.noise(total.unsqueeze(0), grid, [at.secret("server noise")])
        return grid.add(total, drawn[0])

    def add_noise(
        self,
        stacked: Stacked,
        std: float,
        purpose: str,
        cohort: Cohort,
        at: Round,
        release: Release,
        unit: float = 1.0,
        reach: float | None = None,
    ) -> dict[str, Tensor]:
        """Add each client's own noise to its tensors, rounded to the noise's grid.

        ``std`` 0 adds none; ``purpose`` names the random streams; ``unit`` is what 1 is
        in the units of the release's event; ``reach`` is as in :meth:`grid`.
        """
        grid = self.grid(std, at, reach)
        if grid is None:
            return dict(stacked)
        streams = [at.secret(purpose, client) for client in cohort.clients]
        drawn = {
            name: self.noise(tensor, grid, streams) for name, tensor in stacked.items()
        }
        if at.trace is not None:
            at.trace.noise(release, drawn, unit)
        return {name: grid.add(t, drawn[name]) for name, t in stacked.items()}

    def clipped(
        self, gradients: ContextGradients, releases: Sequence[Parts], at: Round
    ) -> list[dict[str, Tensor]]:
        """Return the gradients of each release, clipped as the mode does.

        Sums over records, or batch means, for what :meth:`divisor` makes means of.

        A release has a name, what it makes, linearly, of a gradient by the context ([k,
        tokens, width], or with an axis of records after the first), and a clip norm of
        that.
        """
        if self.sums_clipped:
            return self._clipped_records(gradients, releases, at)
        whole = gradients.of_batch()
        if not self.clips_records:
            whole = whole / gradients.sizes.clamp(min=1)[:, None, None]
        return [
            self.clip_batch(split(whole), clip_norm, release, at)
            for release, split, clip_norm in releases
        ]

    def _clipped_records(
        self, gradients: ContextGradients, releases: Sequence[Parts], at: Round
    ) -> list[dict[str, Tensor]]:
        sums: list[dict[str, Tensor]] = [{} for _ in releases]
        for chunk, mask in gradients.by_record():
            for total, (release, split, clip_norm) in zip(sums, releases, strict=True):
                clipped_sums = self.sum_clipped(
                    split(chunk), clip_norm, mask, release, at
                )
                for name, part in clipped_sums.items():
                    total[name] = total[name] + part if name in total else part
        return sums

    def clip_batch(
        self,
        gradients: Stacked,
        clip_norm: float,
        release: Release,
        at: Round,
        unit: float = 1.0,
    ) -> dict[str, Tensor]:
        """Clip each tensor of a batch mean by itself, if anything is clipped at all.

        ``unit``: What a length of 1 is in the units of the release's event.
        """
        if not self.clips:
            return dict(gradients)
        clipped = clip_each(gradients, clip_norm)
        if at.trace is not None:
            for name, gradient in clipped.items():
                at.trace.clipped(release, "batch", {name: gradient}, unit)
        return clipped

    def sum_clipped(
        self,
        gradients: Stacked,
        clip_norm: float,
        mask: Tensor,
        release: Release,
        at: Round,
        unit: float = 1.0,
    ) -> dict[str, Tensor]:
        """Clip a record's tensors jointly ("sound") or each by itself, and sum."""
        alone = [gradients]
        if self.mode != "sound":
            alone = [{name: gradient} for name, gradient in gradients.items()]
        sums: dict[str, Tensor] = {}
        for group in alone:
            clipped = clip_records(group, clip_norm, mask)
            if at.trace is not None:
                at.trace.clipped(release, "record", clipped, unit)
            sums |= {name: gradient.sum(dim=1) for name, gradient in clipped.items()}
        return sums

    @property
    def optimiser(self) -> Optimiser:
        """The optimiser, or the published code's."""
        return OF_THE_CODE if self.mode == "published-code" else super().optimiser

    @property
    def keeps_slots(self) -> bool:
        """Whether states hold what the optimiser remembers beside the parameters."""
        return self.mode == "published-code" or self.optimizer_state == "kept"

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return a state at rest: the parameters, and what an optimiser remembers."""
        if not self.keeps_slots:
            return dict(parameters)
        return {**parameters, **self.optimiser.at_rest(parameters)}

    def step_along(
        self, state: Stacked, gradients: Stacked, learning_rate: float
    ) -> dict[str, Tensor]:
        """Return the state after a step of the optimiser."""
        slots = state if self.keeps_slots else {}
        moved, remembered = self.optimiser.step(state, gradients, slots, learning_rate)
        return moved | remembered if self.keeps_slots else moved

    def event(
        self,
        task: Task,
        release: Release,
        mechanism: GaussianNoise,
        tensors: int,
        noise_at: NoiseAt,
        parties: int,
    ) -> MechanismEvent:
        """Describe a mechanism as it was applied, for the certificate.

        A fixed batch from more records is one from which a record that joins pushes
        another; whether any client has more is judged by its candidates, as members are
        secret.
        """
        sound = self.mode == "sound"
        displaces = max(task.candidates.values()) > self.batch
        return MechanismEvent(
            release=release,
            noise_multiplier=mechanism.noise_multiplier,
            sensitivity=sensitivity(
                tensors=1 if sound else tensors,
                per_record=self.clips_records,
                displaces=displaces and not sound,
            ),
            clip_norm=mechanism.clip_norm,
            sampling_rate=self.sampling_rate(task) if sound else 1.0,
            sampling="poisson" if sound else "fixed-batch",
            noise_at=noise_at if mechanism.noise_multiplier else "none",
            parties=parties,
            per_record=self.clips_records,
        )

    def claim(self, task: Task) -> Claim:
        """Return epsilon with where it comes from: an accountant, or the formula."""
        if self.epsilon is None:
            return Claim(delta=self.delta)
        source = _FOR_A_RECORD if self.mode == "sound" else _AS_PUBLISHED
        return Claim(self.epsilon, self.delta, source)
