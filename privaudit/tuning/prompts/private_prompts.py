"""DP-SGD on prompts, for the private variants of PromptFL, FedOTP and FedPGP.

Such a trainer derives from :class:`PrivateLocalTrainer` and says what its parameters
are and what each *record's* loss is, ``record_losses(parameters, batch) -> [k, b]``. A
term of the loss that no record enters (a contrast of prompts, say) goes in as
``penalty(parameters) -> [k]``. By mode, and which method does it:

"sound"
    ``train`` runs ``steps`` steps of DP-SGD: a Poisson sample, each record's gradient
    by *all* parameters clipped jointly to ``clip_norm``, summed, noised, divided by a
    public constant. So all parameters, sent or kept, are outputs of one mechanism,
    applied ``rounds * steps`` times; sending, averaging and releasing them is
    post-processing, and ``steps_event`` alone certifies every view. Average uploads
    plainly: a weight or a size would tell how many records a client has.
"published-paper"
    ``train`` takes one step along the clipped gradient of one batch, or those of
    ``local_batches``, without noise. The trainer then adds noise of ``noise_std`` to
    the *prompts*, where the paper says so, and describes it by ``prompt_event``: a
    prompt moves by the rate times what its gradient does, so that the same noise counts
    1 / rate times as much.
"published-code"
    ``gradients`` returns the clipped gradients of one batch, each tensor by itself, to
    be noised and sent (``gradient_event``), or applied by ``descend``, which has the
    code's momentum and weight decay; states come from ``begin``. What uploaded
    gradients add up to is ``integrated``.

Without an epsilon the steps are the same, without noise (and, but for
"published-paper", without clipping); events then certify nothing.

Why "sound" has one mechanism for all parameters: a gradient by a shared prompt, taken
beside a private one, depends on all that the private one has learned. A clipped batch
mean stays within its bound whatever that is. A sum of clipped records does so only
given the private prompt, which therefore must be accounted for as well, also against
those who never see it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch, Penalty, with_canaries
from privaudit.federated.trainer import ClientId, Cohort, Events, Round, Task
from privaudit.federated.transcripts.threat_models import View
from privaudit.privacy.accountant import noise_multiplier_for
from privaudit.privacy.budget import GaussianNoise
from privaudit.privacy.events import NoiseAt, Release
from privaudit.tuning.optimiser import SETTINGS, Optimiser
from privaudit.tuning.prompts.learning import logits_of, record_losses
from privaudit.tuning.prompts.private_training import EVERY_RECORD, PrivateTrainer
from privaudit.tuning.prompts.record_gradients import RecordGradients, RecordLosses


def context_losses(
    task: Task, contexts: Float[Tensor, "k tokens width"], batch: Batch
) -> Float[Tensor, "k b"]:
    """Return every record's cross-entropy under its client's context."""
    logits = logits_of(task, task.prompts(contexts), batch.features)
    return with_canaries(record_losses(logits, batch.labels), contexts, batch)


@pydantic.dataclasses.dataclass(frozen=True)
class PrivateLocalTrainer(PrivateTrainer):
    """A private trainer whose clients train parameters, not only send gradients.

    Attributes:
        learning_rate: Step size, above 0.
        steps: Of DP-SGD that a client runs in each round, at least 1, in mode "sound";
            the published modes take one.
    """

    fixed_as_published: ClassVar[tuple[str, ...]] = SETTINGS

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.005
    steps: Annotated[int, Field(ge=1)] = 5

    def single_step(self) -> Any:
        """Return the same trainer with one noiseless step on all records."""
        return replace(self, epsilon=None, batch_size=EVERY_RECORD, steps=1)

    @model_validator(mode="after")
    def _check_steps(self) -> "PrivateLocalTrainer":
        if self.mode != "sound":
            self.refuse(
                self.fixed_as_published,
                f'in mode "{self.mode}", which takes steps of SGD at one rate, as '
                "published",
            )
        return self

    @property
    def keeps_slots(self) -> bool:
        """Whether a server's state holds what an optimiser remembers: the code's."""
        return self.mode == "published-code"

    @property
    def step_optimiser(self) -> Optimiser:
        """What takes the steps that are clipped and noised."""
        return self.optimiser

    @property
    def local_steps(self) -> int:
        """Steps that a client takes in a round."""
        return self.steps if self.mode == "sound" else 1

    def noise_multiplier(self, task: Task) -> float:
        """Return the noise of one step; in "sound" all steps of all rounds compose.

        Raises:
            ConfigError: The accountant proves no epsilon that low.
        """
        if self.mode != "sound" or self.epsilon is None:
            return super().noise_multiplier(task)
        rate, steps = self.sampling_rate(task), task.rounds * self.steps
        return noise_multiplier_for(self.epsilon, self.delta, rate, steps)

    def noise_std(self, task: Task) -> float:
        """Return the noise's standard deviation, in units of a client's mean gradient.

        In "published-paper" it is that of the noise on prompts, as published: the
        formula for gradients, whatever the rate.
        """
        return self.noise_multiplier(task) * self.clip_norm / self.event_unit(task)

    def event_unit(self, task: Task) -> float:
        """Return what 1 is in units of sums of clipped gradients, as events have it."""
        return self.divisor(task)

    def train(
        self,
        task: Task,
        cohort: Cohort,
        parameters: Stacked,
        record_losses: RecordLosses,
        at: Round,
        penalty: Penalty | None = None,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run a round's local steps, and return the parameters and the mean loss.

        In "sound" each step has a sample and noise of its own; in the published modes
        there is no noise, and one step unless :meth:`local_batches` has more.
        """
        state = dict(parameters)
        total = taken = torch.zeros(len(cohort))
        std = self.noise_std(task) if self.mode == "sound" else 0.0
        unit, slots = self.event_unit(task), self.slots(at)
        memory: Stacked = {} if slots is None else slots
        rate = self.learning_rate * self.rate_share(task, at.index)
        for step, batch, active in self.local_batches(task, cohort, at):
            gradients, losses = self.gradients(
                task, cohort, state, record_losses, step, penalty, batch
            )
            noised = self.add_noise(
                gradients, std, "step noise", cohort, step, "upload", unit
            )
            pulled = _add(noised, self.pull(state, parameters))
            state, memory = self.step_optimiser.step(
                state, pulled, memory, rate, active
            )
            total, taken = total + losses, taken + active
        if slots is not None:
            slots.update(memory)
        return state, total / taken.clamp(min=1)

    def local_batches(
        self, task: Task, cohort: Cohort, at: Round
    ) -> Iterator[tuple[Round, Batch, Bool[Tensor, " k"]]]:
        """Yield each local step's place, its batch, and which clients take it."""
        everyone = cohort.mask.new_ones(len(cohort))
        for number in range(self.local_steps):
            step = at.part("local step", number)
            yield step, self.draw_batch(task, cohort, step), everyone

    def pull(self, parameters: Stacked, start: Stacked) -> dict[str, Tensor]:
        """Return a gradient that no record enters, and that is not clipped."""
        return {}

    def gradients(
        self,
        task: Task,
        cohort: Cohort,
        parameters: Stacked,
        record_losses: RecordLosses,
        at: Round,
        penalty: Penalty | None = None,
        batch: Batch | None = None,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Return each client's clipped mean gradient over one batch, and its loss.

        Where records are clipped, the mean is over a constant, and the penalty's
        gradient comes on top; else the batch's gradient holds it, and is clipped whole.
        Without a batch, one is drawn.
        """
        batch = self.draw_batch(task, cohort, at) if batch is None else batch
        forward = RecordGradients.forward(
            parameters, record_losses, batch, by_record=self.sums_clipped
        )
        extra = _gradients_of(penalty, parameters)
        if not self.clips_records:
            whole = _add(forward.of_mean(), extra)
            clipped = self.clip_batch(whole, self.clip_norm, *self._notes(at))
            return clipped, forward.mean_losses
        sums = (
            self._sum_of_clipped(forward, at) if self.sums_clipped else forward.of_sum()
        )
        mean = {name: tensor / self.divisor(task) for name, tensor in sums.items()}
        return _add(mean, extra), forward.mean_losses

    def _sum_of_clipped(self, forward: RecordGradients, at: Round) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for gradients, mask in forward.by_record():
            clipped_sum = self.sum_clipped(
                gradients, self.clip_norm, mask, *self._notes(at)
            )
            total = _add(clipped_sum, total)
        return total

    def _notes(self, at: Round) -> tuple[Release, Round, float]:
        """Return which release gradients are noted under, where, and in what unit."""
        release: Release = "upload" if self.mode == "sound" else "global"
        of_prompts = self.mode == "published-paper"
        return release, at, self.learning_rate if of_prompts else 1.0

    def descend(self, state: Stacked, gradients: Stacked) -> dict[str, Tensor]:
        """Return the state after a step at the trainer's rate."""
        return self.step_along(state, gradients, self.learning_rate)

    def integrated(self, view: View, client: ClientId) -> Tensor:
        """Return how far the gradients that a client sent move a prompt at rest.

        In "published-code", where uploads are gradients.
        """
        sent = [message.tensors["gradient"] for message in view.updates_of(client)]
        state = self.begin({"moved": torch.zeros_like(sent[0])})
        for gradient in sent:
            state = self.descend(state, {"moved": gradient})
        return state["moved"]

    def steps_event(self, task: Task, parties: int) -> Events:
        """Describe the local steps of one round, in "sound": all that protects it."""
        if not self.clips:
            return ()
        step = GaussianNoise(self.noise_multiplier(task), self.clip_norm)
        event = self.event(task, "upload", step, 1, "client", parties)
        return (replace(event, steps=self.steps),)

    def prompt_event(
        self,
        task: Task,
        release: Release,
        noise_at: NoiseAt,
        parties: int,
        tensors: int = 1,
    ) -> Events:
        """Describe noise of ``noise_std`` on prompts after a step ("published-paper").

        On each client's own, or, at the server, of 1 / parties of it on their mean.

        The release is "global" for what is averaged, "local" for what is kept; each of
        so many tensors is clipped by itself.
        """
        rate = self.learning_rate
        noise = GaussianNoise(self.noise_multiplier(task) / rate, rate * self.clip_norm)
        return (self.event(task, release, noise, tensors, noise_at, parties),)

    def gradient_event(
        self,
        task: Task,
        release: Release,
        noise_at: NoiseAt,
        parties: int,
        tensors: int = 1,
    ) -> Events:
        """Describe the same noise on gradients ("published-code"); see above."""
        if not self.clips:
            return ()
        noise = GaussianNoise(self.noise_multiplier(task), self.clip_norm)
        return (self.event(task, release, noise, tensors, noise_at, parties),)


def _gradients_of(penalty: Penalty | None, parameters: Stacked) -> dict[str, Tensor]:
    """Return the gradients by all parameters that the penalty depends on."""
    if penalty is None:
        return {}
    with torch.enable_grad():
        leaves = {n: t.detach().requires_grad_() for n, t in parameters.items()}
        total = penalty(leaves).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {n: g for n, g in zip(leaves, gradients, strict=True) if g is not None}


def _add(some: Stacked, more: Stacked) -> dict[str, Tensor]:
    """Return the sums by name; what one of them lacks is zero there."""
    return dict(some) | {n: some[n] + t if n in some else t for n, t in more.items()}
