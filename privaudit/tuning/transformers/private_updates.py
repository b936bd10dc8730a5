"""Client-level differential privacy: flat updates, clipped and noised."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import ClientId, Cohort, Reconstruction, Round, Task
from privaudit.federation.uploads import COORDINATES, UNTRAINED
from privaudit.privacy.accountant import noise_multiplier_for
from privaudit.privacy.clipping import clip_each
from privaudit.privacy.discrete_gaussian import Grid, Rounding
from privaudit.privacy.events import Adjacency, Claim, MechanismEvent, NoiseAt, Release
from privaudit.tuning.transformers.prompt_tuning import PromptTuner

_AS_PUBLISHED = (
    "epsilon as published; how noise follows from it was not: here "
    "sqrt(2 ln(1.25/delta)) / epsilon, for one upload"
)
_FOR_A_CLIENT = (
    "noise by an accountant (see the certificate), for one client, whose records are "
    "all {how}"
)

MOVED = "moved"
CLIENTS_ROUNDING: Rounding = "toward-zero"
"""A clipped move stays within its norm, so a grid costs no sensitivity."""


@pydantic.dataclasses.dataclass(frozen=True)
class PrivateUpdates(PromptTuner):
    """Clients train, clip by how much that moved all they learn, and add noise.

    What is protected is a client, with all it has. Every participant counts the same,
    and sums are divided by how many take part, which is public: weights by size would
    tell sizes, and one client's weight would move all others' parts.

    Neighbours, by ``adjacency``. "replace-one": one client's records are replaced by
    any others; its part moves from anywhere in the ball of radius C to anywhere else,
    by 2 C at most. That covers a single record more, less or changed, as canaries of an
    audit are, and clients that are drawn without replacement. "add/remove-one": the
    client's part is left out, and zero stands in its place (the noise stays): C at
    most.

    Attributes:
        mode: "sound" clips, and takes noise from an accountant. "published-paper" is
            what was proposed: noise on what training gave, which nothing says is
            clipped.
        epsilon: Above 0; of all rounds. "published-paper": of one upload, by the
            textbook formula sqrt(2 ln(1.25 / delta)) / epsilon, as none is given. None
            neither clips nor adds noise.
        delta: Delta of (epsilon, delta)-DP, in (0, 1).
        clip_norm: C, the largest norm of a client's move, above 0. The default is about
            what a soft prompt on the embedded model moves in a round.
        adjacency: Neighbouring data sets of the DP guarantee.
    """

    reconstructs_from_all_rounds: ClassVar[bool] = True

    mode: Literal["sound", "published-paper"] = "sound"
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-5
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    adjacency: Adjacency = "replace-one"

    def single_step(self) -> Any:
        """Return the same trainer with one noiseless step on the whole shard."""
        return self.with_settings(epochs=1, batch_size=0, epsilon=None)

    @property
    def is_noised(self) -> bool:
        """Whether there is an epsilon to be kept."""
        return self.epsilon is not None

    @property
    def clips(self) -> bool:
        """Whether anything is clipped."""
        return self.mode == "sound" and self.epsilon is not None

    @property
    def remembers(self) -> bool:
        """Whether clients keep what depends on the rounds that they were drawn for.

        Then others' uploads tell who was drawn before, and draws are no longer
        independent of what is seen: nothing is gained by them in the certificate.
        """
        return self.optimizer_state == "kept"

    @property
    def sensitivity(self) -> float:
        """By how many clip norms a client's part moves between neighbours."""
        return 2.0 if self.adjacency == "replace-one" else 1.0

    def noise_multiplier(self, task: Task) -> float:
        """Return the standard deviation over C that spends all of epsilon.

        "sound": if every client takes part in every round; who is drawn for fewer is
        protected better, and the certificate says by how much.
        """
        if self.epsilon is None:
            return 0.0
        if self.mode == "published-paper":
            return math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        each = noise_multiplier_for(self.epsilon, self.delta, 1.0, task.rounds)
        return self.sensitivity * each

    def moves(
        self, task: Task, cohort: Cohort, received: Stacked, at: Round
    ) -> tuple[Float[Tensor, "k n"], Float[Tensor, " k"]]:
        """Train; return by how much all parameters moved, in a row, and the loss."""
        start = learned(received)
        trained, loss = self.train(task, cohort, start, at)
        moved = {name: tensor - start[name] for name, tensor in trained.items()}
        return flat(moved), loss

    def clipped(
        self, moved: Float[Tensor, "k n"], release: Release, at: Round
    ) -> Float[Tensor, "k n"]:
        """Return each client's move, no longer than the clip norm, where that is asked."""
        if not self.clips:
            return moved
        short = clip_each({MOVED: moved}, self.clip_norm)[MOVED]
        if at.trace is not None:
            at.trace.clipped(release, "client", {MOVED: short})
        return short

    def noised(
        self,
        values: Float[Tensor, "k n"],
        std: float,
        purpose: str,
        cohort: Cohort,
        release: Release,
        at: Round,
    ) -> Float[Tensor, "k n"]:
        """Add each client's own noise, from a stream of that purpose."""
        grid = self.grid(std, release, at)
        if grid is None:
            return values
        streams = [at.secret(purpose, client) for client in cohort.clients]
        drawn = grid.noises(values.shape[1:], streams)
        if at.trace is not None:
            at.trace.noise(release, {MOVED: drawn}, 1.0)
        return grid.add(values, drawn, CLIENTS_ROUNDING)

    def grid(self, std: float, release: Release, at: Round) -> Grid | None:
        """Return the grid of a client's noise; None without noise."""
        if std == 0:
            return None
        if release != "global":
            return Grid.of(std)
        reach = self.clip_norm if self.clips else 0.0
        return Grid.of(std, reach=reach, step=at.step)

    def event(
        self,
        task: Task,
        release: Release,
        noise_multiplier: float,
        noise_at: NoiseAt,
        at: Round,
        sensitivity: float | None = None,
        values: int = 0,
    ) -> MechanismEvent:
        """Describe a mechanism as it was applied, for the certificate."""
        exact = MechanismEvent(
            release=release,
            noise_multiplier=noise_multiplier,
            sensitivity=sensitivity or self.sensitivity,
            clip_norm=self.clip_norm,
            sampling_rate=len(at.participants) / len(task.clients),
            sampling="fixed-batch" if self.remembers else "without-replacement",
            noise_at=noise_at if noise_multiplier else "none",
            parties=len(at.participants),
            per_record=False,
            unit="client",
            adjacency=self.adjacency,
            bounded=self.clips or not noise_multiplier,
        )
        std = noise_multiplier * self.clip_norm
        if noise_at == "server":
            return exact.on(Grid.of(std) if std else None, values)
        shares = len(at.participants) if noise_at == "distributed" else 1
        grid = self.grid(std / math.sqrt(shares), release, at)
        return exact.on(grid, values, CLIENTS_ROUNDING)

    def claim(self, task: Task) -> Claim:
        """Return epsilon with where it comes from: an accountant, or the formula."""
        if self.epsilon is None:
            return Claim(delta=self.delta)
        if self.mode == "published-paper":
            return Claim(self.epsilon, self.delta, _AS_PUBLISHED)
        how = "replaced" if self.adjacency == "replace-one" else "left out"
        return Claim(self.epsilon, self.delta, _FOR_A_CLIENT.format(how=how))

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the server's last parameters: they are everybody's."""
        return learned(received)

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the average, drawn towards the client by what it sent.

        Without noise on uploads the last one is the client. With it, a single one tells
        little, and all of them are added up: by 1 / sqrt(N) of their sum, less the 1 /
        N that the average has of it, as dp-promptfl's rebuild does, with its N.
        """
        if view.has_release_of(client):
            return Reconstruction(learned(view.release_of(client).tensors))
        shared = view.last_broadcast(client).tensors
        if not view.sees_updates_of(client):
            return Reconstruction(learned(shared), (UNTRAINED,))
        down = {m.round: m.tensors for m in view.broadcasts_to(client)}
        sent = [(m.tensors, down[m.round]) for m in view.updates_of(client)]
        if not self.noises_uploads:
            moved, before = sent[-1]
            return Reconstruction(moved_by(learned(before), spread(moved, before)))
        parties = fmean(view.parties_of(client))
        whole = torch.stack([spread(*one) for one in sent]).sum(dim=0)
        share = parties**-0.5 - 1 / parties
        return Reconstruction(moved_by(learned(shared), share * whole))

    @property
    def noises_uploads(self) -> bool:
        """Whether what a client sends carries noise of its own."""
        return self.epsilon is not None


def learned(tensors: Tensors) -> dict[str, Tensor]:
    """Return the parameters among what was sent."""
    return {name: t for name, t in tensors.items() if name != COORDINATES}


def flat(parameters: Stacked) -> Float[Tensor, "k n"]:
    """Return all numbers of each model in a row, tensors in order of names."""
    return torch.cat([parameters[n].flatten(1) for n in sorted(parameters)], dim=1)


def size_of(parameters: Tensors) -> int:
    """Count the numbers of one model."""
    return sum(tensor.numel() for tensor in learned(parameters).values())


def moved_by(parameters: Tensors, row: Float[Tensor, " n"]) -> dict[str, Tensor]:
    """Return one model's parameters, moved by numbers that stand in a row."""
    moved, first = {}, 0
    for name in sorted(parameters):
        tensor = parameters[name]
        part = row[first : first + tensor.numel()]
        moved[name] = tensor + part.view(tensor.shape).to(tensor.dtype)
        first += tensor.numel()
    return {name: moved[name] for name in parameters}


def scattered(
    values: Float[Tensor, " some"], places: Int[Tensor, " some"], size: int
) -> Float[Tensor, " n"]:
    """Return a row of zeros but for the values at their places."""
    return torch.zeros(size, dtype=values.dtype).index_put((places,), values)


def spread(sent: Tensors, received: Tensors) -> Float[Tensor, " n"]:
    """Return what one client sent as a full row, whichever message holds its places."""
    places = sent.get(COORDINATES, received.get(COORDINATES))
    if places is None:
        return sent[MOVED]
    return scattered(sent[MOVED], places, size_of(received))
