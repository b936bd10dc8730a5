"""What prompt trainers with differential privacy share: modes, batches, clips, noise."""

import math
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from privaudit.errors import ConfigError
from privaudit.privacy.accountant import noise_multiplier_for
from privaudit.privacy.clipping import clip_joint
from privaudit.privacy.mechanism import MechanismEvent, NoiseAt, Release, sensitivity
from privaudit.privacy.noise import gaussian, noise_std_published, secure_gaussian
from privaudit.prompt_gradients import Batch, fixed_batch, poisson_batch
from privaudit.prompt_learning import PromptTrainer
from privaudit.tensors import Stacked
from privaudit.trainer import Claim, Cohort, PublicTask, Round

Mode = Literal["sound", "published-paper", "published-code"]
Clip = Literal["sample", "batch"]


@plain_dataclass(frozen=True)
class Mechanism:
    """One release's Gaussian mechanism, in units of what a client computes.

    Attributes:
        noise_multiplier: Standard deviation over clip norm; 0 is no noise.
        clip_norm: Largest norm.
    """

    noise_multiplier: float
    clip_norm: float

    @property
    def std(self) -> float:
        """Standard deviation of the noise."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0


@pydantic.dataclasses.dataclass(frozen=True)
class PrivateTrainer(PromptTrainer):
    """A prompt trainer that clips gradients and adds noise.

    Attributes:
        mode: "sound" is private with the epsilon that stands on it: Poisson samples,
            every record clipped, noise by an accountant. "published-paper" and
            "published-code" do what was published, whatever that proves.
        epsilon: Above 0. "sound": what an accountant certifies for a client's released
            model. Published: what is put into the published formula. None is no noise,
            and no clipping either, except in "published-paper".
        delta: In (0, 1).
        clip_norm: Largest norm of a record's (or batch's) gradient, above 0.
        clip: What is clipped: each record ("sample": "sound" always, "published-paper"
            on request, read so that its claimed sensitivity holds) or the mean over a
            batch ("batch", as published). By default the mode's own.
        batch_size: Records in a batch, at least 1: expected in "sound", exact in the
            others (a client with fewer takes all it has).
        secure_noise: Draw noise, and the coins of Poisson samples, from the operating
            system's entropy: no seed of the run repeats them. Such a run cannot be
            repeated, nor resumed to the same bytes.
    """

    mode: Mode = "sound"
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    clip: Clip | None = None
    batch_size: Annotated[int, Field(ge=1)] = 32
    secure_noise: bool = False

    @model_validator(mode="after")
    def _check_clip(self) -> "PrivateTrainer":
        needed = {"sound": "sample", "published-code": "batch"}.get(self.mode)
        if needed and self.clip not in (None, needed):
            raise ConfigError(
                f"clip = {self.clip!r} was asked for in mode {self.mode!r}, which knows "
                f'{needed!r} only. Leave it out, or take mode "published-paper"'
            )
        return self

    @property
    def clips_records(self) -> bool:
        """Whether each record's gradient is clipped, not the batch's."""
        return self.mode == "sound" or self.clip == "sample"

    @property
    def clips(self) -> bool:
        """Whether anything is clipped at all."""
        return self.epsilon is not None or self.mode == "published-paper"

    def sampling_rate(self, task: PublicTask) -> float:
        """Return the chance of a record to be in a Poisson sample: a public constant.

        Batch size over the members that a client has on average, at most 1. A client
        with more records takes larger samples; the rate must not depend on its size.
        """
        return min(1.0, self.batch_size / max(task.expected_members, 1.0))

    def divisor(self, task: PublicTask) -> float:
        """Return what a client's gradients are divided by to give a mean: a constant.

        1 where they are a batch's mean already. Never the realised size of a sample.
        """
        if self.mode == "sound":
            return self.sampling_rate(task) * max(task.expected_members, 1.0)
        return float(self.batch_size) if self.clips_records else 1.0

    def draw_batch(self, task: PublicTask, cohort: Cohort, at: Round) -> Batch:
        """Draw this round's batch of every client."""
        if self.mode == "sound":
            rate = self.sampling_rate(task)
            return poisson_batch(cohort, at, rate, secure=self.secure_noise)
        return fixed_batch(cohort, at, self.batch_size)

    def noise_multiplier(self, task: PublicTask) -> float:
        """Return the multiplier of one release per round that spends all of epsilon.

        "sound": by the accountant, for the task's rounds. Published: sqrt(T ln(1/delta))
        / epsilon where records are clipped, and that over the batch size where batch
        means are: the formula takes a sensitivity for granted that the latter lack.

        Raises:
            ConfigError: The accountant proves no epsilon that low.
        """
        if self.epsilon is None:
            return 0.0
        if self.mode == "sound":
            rate = self.sampling_rate(task)
            return noise_multiplier_for(self.epsilon, self.delta, rate, task.rounds)
        of_means, _ = noise_std_published(
            self.epsilon, self.delta, task.rounds, 1.0, self.batch_size, clients=1
        )
        return of_means * self.divisor(task)

    def noise(
        self, shape: tuple[int, ...], std: float, generator: torch.Generator
    ) -> Float[Tensor, "..."]:
        """Return noise from the stream, or from the operating system."""
        if self.secure_noise:
            return secure_gaussian(shape, std)
        return gaussian(shape, std, generator)

    def add_noise(
        self, stacked: Stacked, std: float, purpose: str, cohort: Cohort, at: Round
    ) -> dict[str, Tensor]:
        """Add each client's own noise to its tensors."""
        noised = dict(stacked)
        if std == 0:
            return noised
        streams = [at.generator(purpose, client) for client in cohort.clients]
        for name, tensor in stacked.items():
            draws = [self.noise(tuple(tensor.shape[1:]), std, g) for g in streams]
            noised[name] = tensor + torch.stack(draws)
        return noised

    def clipped_sums(
        self, gradients: Stacked, clip_norm: float, mask: Tensor
    ) -> dict[str, Tensor]:
        """Clip every record's gradients [k, c, ...], and sum them over records.

        "sound" bounds the joint norm of a record's tensors, Algorithm 1 each by itself.
        """
        if self.mode == "sound":
            return clip_joint(gradients, clip_norm, mask)
        alone = [clip_joint({n: g}, clip_norm, mask) for n, g in gradients.items()]
        return {name: tensor for part in alone for name, tensor in part.items()}

    def event(
        self,
        task: PublicTask,
        release: Release,
        mechanism: Mechanism,
        *,
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
        displaces = max(task.candidates.values()) > self.batch_size
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
        )

    def claim(self, task: PublicTask) -> Claim:
        """Return epsilon with where it comes from: an accountant, or the formula."""
        if self.epsilon is None:
            return Claim(delta=self.delta)
        source = (
            "noise by an accountant, for a record of the released model"
            if self.mode == "sound"
            else "the published formula, sqrt(T ln(1/delta)) / epsilon * C / B"
        )
        return Claim(self.epsilon, self.delta, source)


def split_budget(
    noise_multiplier: float, share: float, voices: int = 1
) -> tuple[float, float]:
    """Return the multipliers of two releases of one sample that cost what one does.

    1/z^2 = 1/z_first^2 + 1/(voices z_second^2), where the second release has
    1/z_second^2 = (1 - share) / z^2.

    Args:
        noise_multiplier: z, of a single release; 0 gives none to either.
        share: Of 1/z^2 that goes to the first release, in (0, 1).
        voices: Equal noises that add up in the second release; what that saves goes to
            the first.

    Example:
        >>> split_budget(1.0, 0.5)
        (1.414..., 1.414...)
    """
    second = noise_multiplier / math.sqrt(1 - share)
    return noise_multiplier / math.sqrt(1 - (1 - share) / voices), second
