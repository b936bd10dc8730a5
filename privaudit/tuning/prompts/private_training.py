"""Private prompt trainers: modes, batches, clipping and noise.

:class:`PrivateTrainer` has what all share. The private variants of PromptFL,
FedOTP and FedPGP derive from :class:`PrivateLocalTrainer` and say what their parameters
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
    the *prompts*, where the paper says so, and describes it by ``noise_event``: a
    prompt moves by the rate times what its gradient does, so that the same noise counts
    1 / rate times as much.
"published-code"
    ``gradients`` returns the clipped gradients of one batch, each tensor by itself, to
    be noised and sent (``noise_event``), or applied by ``descend``, which has the
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

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float, Float64
from pydantic import Field, model_validator
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors, numbers_in
from privaudit.federation.batches import Batch, Penalty
from privaudit.federation.threat_models import RoundSum, View
from privaudit.federation.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Round,
    Task,
)
from privaudit.privacy.accountant import noise_multiplier_for
from privaudit.privacy.clipping import clip_each, clip_records
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import (
    Claim,
    GaussianNoise,
    MechanismEvent,
    NoiseAt,
    Release,
    noise_std_published,
    on_grid,
    sensitivity,
)
from privaudit.tuning.optimiser import SETTINGS, VELOCITY, Optimised, Optimiser
from privaudit.tuning.prompts.gradients import (
    ContextGradients,
    RecordGradients,
    RecordLosses,
    fixed_batch,
    poisson_batch,
)
from privaudit.tuning.prompts.learning import PromptTrainer, context_losses

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

    shared: ClassVar[str] = "context"  # the name of the prompt that is sent

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

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the shared prompt to everyone, and nothing that an optimiser remembers."""
        return {self.shared: server[self.shared]}

    def single_step(self) -> Any:
        """Return the same trainer with one noiseless step on all records."""
        return self.with_settings(epsilon=None, batch_size=EVERY_RECORD, steps=1)

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
            for place, (release, split, clip_norm) in enumerate(releases):
                part = self.sum_clipped(split(chunk), clip_norm, mask, release, at)
                sums[place] = _add(part, sums[place])
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


def losses_by_context(task: Task) -> RecordLosses:
    """Return :func:`context_losses` as a function of parameters."""
    return lambda parameters, batch: context_losses(task, parameters["context"], batch)


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

    def noise_multiplier(self, task: Task) -> float:
        """Return the noise of one step; in "sound" all steps of all rounds compose."""
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
        for number in range(self.steps if self.mode == "sound" else 1):
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
        for some, mask in forward.by_record():
            part = self.sum_clipped(some, self.clip_norm, mask, *self._notes(at))
            total = _add(part, total)
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

    def noise_event(
        self,
        task: Task,
        release: Release,
        noise_at: NoiseAt,
        parties: int,
        tensors: int = 1,
    ) -> Events:
        """Describe noise of ``noise_std`` in a published mode.

        In "published-paper" on prompts after a step, in "published-code" on gradients:
        on each client's own, or, at the server, of 1 / parties of it on their mean.

        The release is "global" for what is averaged, "local" for what is kept; each of
        so many tensors is clipped by itself.
        """
        if not self.clips:
            return ()
        rate = self.learning_rate if self.mode == "published-paper" else 1.0
        noise = GaussianNoise(self.noise_multiplier(task) / rate, rate * self.clip_norm)
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


@pydantic.dataclasses.dataclass(frozen=True)
class PrivatePairTrainer(PrivateLocalTrainer):
    """Rounds of a shared prompt and a kept part, in each of the three modes.

    "sound": ``steps`` steps of DP-SGD on all parameters; what is sent, averaged and
    released is post-processing. "published-paper": one clipped step on one batch, then
    noise on the kept part by its client, and 1 / N of it on the mean of the shared
    prompts by the server. "published-code": clients send the clipped gradient by the
    shared prompt, the server adds that noise to the mean; the gradients by the kept
    part get their client's; momentum 0.9 and weight decay 5e-4 on either side.

    Averages are plain, as DP-FPL's appendix has them: a weight would be a size.
    """

    @abstractmethod
    def losses(self, task: Task) -> RecordLosses:
        """Return the function from parameters and a batch to every record's loss."""

    def penalty(self, task: Task) -> Penalty | None:
        """Return the term of the loss that no record enters, if there is one."""
        return None

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train, and send the shared prompt or the clipped gradient by it."""
        personal = {n: tensor for n, tensor in kept.items() if not n.endswith(VELOCITY)}
        do = self.gradients if self.mode == "published-code" else self.train
        done, loss = do(
            task,
            cohort,
            {**received, **personal},
            self.losses(task),
            at,
            self.penalty(task),
        )
        parties, values = len(at.participants), numbers_in(done)
        sent = {self.shared: done.pop(self.shared)}
        grid = self.grid(self.noise_std(task), at)
        if self.mode == "sound":
            events = on_grid(self.steps_event(task, parties), grid, values)
            return LocalResult(sent, done, loss, events)
        done = self.add_noise(
            done, self.noise_std(task), "local noise", cohort, at,
            self._kept_release, self.event_unit(task),
        )  # fmt: skip
        if self.mode == "published-code":
            sent, done = {"gradient": sent[self.shared]}, self.descend(kept, done)
        kept_release, tensors = self._kept_release, len(personal)
        events = self.noise_event(task, kept_release, "client", parties, tensors)
        return LocalResult(
            sent, done, loss, on_grid(events, grid, numbers_in(personal))
        )

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Average the shared prompts, or step along the mean gradient, with noise."""
        parties, code = len(at.participants), self.mode == "published-code"
        mean: Tensor = inbox["gradient" if code else self.shared] / parties
        if self.mode == "sound":
            return {self.shared: mean}, ()
        std = self.noise_std(task) / parties
        mean, grid = self.noised_by_server(mean, std, at), self.grid(std, at)
        events = self.noise_event(task, "global", "server", parties)
        new = {self.shared: mean}
        moved = self.descend(server, new) if code else new
        return moved, on_grid(events, grid, mean.numel())

    def without_own_noise(self, view: View) -> Tensor | None:
        """Return the shared prompt as clean sums make it; None where they are not seen.

        A server adds its noise to what it broadcasts, and knows the sums before.
        """
        adds_noise = self.mode != "sound" and self.epsilon is not None
        if not (adds_noise and view.last_sum):
            return None
        return view.once(("clean prompt", repr(self)), lambda: self._clean(view.sums))

    def _clean(self, rounds: Sequence[RoundSum]) -> Tensor:
        state = {self.shared: rounds[0].broadcast[self.shared]}
        if self.mode == "published-code":
            state = self.begin(state)
            for one in rounds:
                state = self.descend(state, {self.shared: one.mean("gradient")})
            return state[self.shared]
        moves = [one.mean(self.shared) - one.broadcast[self.shared] for one in rounds]
        return state[self.shared] + torch.stack(moves).sum(dim=0)

    def shared_part(self, view: View, client: ClientId) -> Tensor:
        """Return the best shared prompt for a client: its own where uploads are seen.

        Where the server's noise can be left out, in "published-paper", the client's own
        moves take the place of the mean ones. (dp-fedpgp at epsilon 0.4 on digits, six
        seeds, attack by loss: AUROC 0.524, with the mean moves alone 0.516, on the
        client's last upload, noise and all, 0.509.)
        """
        clean = self.without_own_noise(view)
        if self.mode == "published-code" or not view.sees_updates_of(client):
            last = view.last_broadcast(client).tensors[self.shared]
            return last if clean is None else clean
        if clean is None:
            return view.updates_of(client)[-1].tensors[self.shared]
        moves = torch.stack(view.moves_of(client, self.shared))
        parties = torch.tensor(view.parties_of(client))
        for count in parties.unique().tolist():  # a mean has 1 / count of a move
            clean = clean + (1 - 1 / count) * moves[parties == count].sum(dim=0)
        return clean

    @property
    def _kept_release(self) -> Release:
        """What the noise on the kept part is noise on.

        A batch mean is clipped to its bound whatever the kept part is, so who sees the
        shared prompt alone need not account for that. A sum of clipped records moves by
        one clip norm only as long as the kept part is the same: then every view must.
        """
        return "upload" if self.clips_records else "local"
