"""FedPT whose clients send the most important of their numbers, with noise."""

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import (
    TRAINERS,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Round,
    Task,
)
from privaudit.federation.uploads import COORDINATES
from privaudit.privacy.events import split_budget
from privaudit.tuning.transformers.private_updates import (
    MOVED,
    PrivateUpdates,
    moved_by,
    spread,
)

Choice = Literal["noised", "private", "largest"]
EVERY_NUMBER = 10**9
UNSENT = "unsent"


@TRAINERS.register("fedpt-top-k")
@dataclass(frozen=True)
class FedPTTopK(PrivateUpdates):
    """FedPT with top-k sparsification: send the k largest changes and their positions.

    ``PromptTuner.start`` draws what is learned, tuning/transformers/prompt_tuning.py.

    Which they are is a release of its own, and no noise on the numbers hides it. With
    a, b the clipped moves of neighbours, of norm C at most:

    - "largest", as published: the k largest |a_j|, with noise on what is sent. The set
      follows from the data without chance: where it differs between neighbours one look
      tells them apart, so nothing is certified.
    - "private": the k largest of |a_j| + N(0, s_1² C²), all n noises drawn; then a_j +
      N(0, s_2² C²) for the chosen j. Choosing is post-processing of a Gaussian
      mechanism on the vector |a|. That moves by at most sqrt(2) C where a client is
      replaced: no entry is negative, so |a|'|b| >= 0, and the squared distance is at
      most |a|² + |b|²; and by C where it is left out. Given the set, the numbers sent
      are part of a, which moves by 2 C, or C. The two compose, in that order, as
      Gaussian mechanisms.
    - "noised": the k largest |a_j + N(0, s² C²)|, and these numbers as they are, with
      the noise by which they won. All of it is post-processing of one Gaussian
      mechanism, so nothing is paid for the choice; but winners are those whose noise is
      large.

    Noisy choices by Gumbel's noise (k steps of the exponential mechanism at once:
    Durfee and Rogers, "Practical differentially private top-k selection with
    pay-what-you-get composition", NeurIPS 2019) pay for each of the k, as they know of
    each |a_j| alone that it moves by at most C. At equal noise variance v and a client
    left out they cost k pi² / 48 C² / v in zero-concentrated terms, and the Gaussian
    choice C² / (2 v): for k of 3 or more the Gaussian is cheaper, as it uses that all
    entries together move by C.

    The server needs every upload by itself, as sets differ, so noise is each client's
    own and nobody else's counts. Coordinates that all clients share are in dp-fedpt.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", section 2.4, item 3. There noise has as many entries as there
    are parameters: were it added to all of them, zeros too, all would have to be sent.

    Attributes:
        choice: By default "noised", and "largest" as published.
        top: k, the number of coordinates that are sent.
        choice_share: Of what privacy costs, "private" spends so much on the choice.
        error_feedback: Keep what was not sent, and add it to the next move before that
            is clipped (Seide et al., "1-bit stochastic gradient descent", 2014). All
            that a client sends in a round is still part of a vector of norm C. But what
            others kept tells who was drawn before, so no certificate counts the draw.
    """

    aggregation: ClassVar[Literal["sum", "individual"]] = "individual"

    choice: Choice | None = None
    top: Annotated[int, Field(ge=1)] = 64
    choice_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    error_feedback: bool = False

    @model_validator(mode="after")
    def _check_choice(self) -> "FedPTTopK":
        if self.mode == "published-paper" and self.choice not in (None, "largest"):
            raise ConfigError(
                f"choice = {self.choice!r} was requested in mode {self.mode!r}, which "
                'supports "largest" only. Leave it out, or use mode "sound"'
            )
        return self

    @property
    def chooses(self) -> Choice:
        """How coordinates are chosen."""
        usual: Choice = "noised" if self.mode == "sound" else "largest"
        return self.choice or usual

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Send the chosen numbers of what training moved, and their places."""
        moved, loss = self.moves(task, cohort, received, at)
        moved = self.clipped(moved + kept.get(UNSENT, 0.0), "upload", at)
        values, places = self.chosen(task, cohort, moved, at)
        sent = {MOVED: values, COORDINATES: places}
        events = self._events(task, at, moved.shape[1], values.shape[1])
        unsent = {UNSENT: moved.scatter(1, places, 0.0)} if self.error_feedback else {}
        return LocalResult(sent, unsent, loss, events)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Move by the sum over the number of participants; what is not sent is zero."""
        rows = torch.stack([spread(sent, server) for sent in inbox.values()])
        return moved_by(server, rows.sum(dim=0) / len(rows)), ()

    def chosen(
        self, task: Task, cohort: Cohort, moved: Float[Tensor, "k n"], at: Round
    ) -> tuple[Float[Tensor, "k some"], Int[Tensor, "k some"]]:
        """Return what each client sends of its clipped move, and where it belongs."""
        noise = self._noise_multiplier(task) * self.clip_norm
        if self.chooses == "noised":
            noisy = self.noised(moved, noise, "noise", cohort, "upload", at)
            places = _largest(noisy.abs(), self.top)
            return noisy.gather(1, places), places
        weight = moved.abs()
        if self.chooses == "private":
            std = self._choice_multiplier(task) * self.clip_norm
            weight = self.noised(weight, std, "choice noise", cohort, "choice", at)
        places = _largest(weight, self.top)
        values = moved.gather(1, places)
        return self.noised(values, noise, "noise", cohort, "upload", at), places

    def single_step(self) -> Any:
        """Return the same trainer with one noiseless step that sends all numbers."""
        return replace(super().single_step(), top=EVERY_NUMBER, error_feedback=False)

    @property
    def remembers(self) -> bool:
        """Whether clients keep what depends on the rounds that they were drawn for."""
        return self.error_feedback or super().remembers

    @property
    def _choice_sensitivity(self) -> float:
        return math.sqrt(2) if self.adjacency == "replace-one" else 1.0

    def _shares(self, task: Task) -> tuple[float, float]:
        """Return the multipliers of choice and values, for a sensitivity of 1."""
        whole = self.noise_multiplier(task) / self.sensitivity
        return split_budget(whole, self.choice_share)

    def _noise_multiplier(self, task: Task) -> float:
        if self.chooses != "private":
            return self.noise_multiplier(task)
        return self.sensitivity * self._shares(task)[1]

    def _choice_multiplier(self, task: Task) -> float:
        return self._choice_sensitivity * self._shares(task)[0]

    def _events(self, task: Task, at: Round, size: int, sent: int) -> Events:
        noised = size if self.chooses == "noised" else sent
        spent = self._noise_multiplier(task)
        values = self.event(task, "upload", spent, "client", at, values=noised)
        if self.chooses == "noised":
            return (values,)
        noise = self._choice_multiplier(task) if self.chooses == "private" else 0.0
        moves = self._choice_sensitivity
        choice = self.event(task, "choice", noise, "client", at, moves, size)
        return (values, choice)


def _largest(weight: Float[Tensor, "k n"], most: int) -> Int[Tensor, "k some"]:
    """Return the places of each row's largest entries, in order of place.

    In order of place: the order of size would tell more than the set.
    """
    places = weight.topk(min(most, weight.shape[1]), dim=1).indices
    return places.sort(dim=1).values
