"""FedPT with differential privacy for whole clients."""

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Round,
    Task,
)
from privaudit.federation.uploads import COORDINATES
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import NoiseAt
from privaudit.tuning.transformers.private_updates import (
    MOVED,
    PrivateUpdates,
    learned,
    moved_by,
    scattered,
    size_of,
)

NoiseBy = Literal["clients-together", "each-client", "server"]
NOISE_AT: dict[NoiseBy, NoiseAt] = {
    "clients-together": "distributed",
    "each-client": "client",
    "server": "server",
}


@TRAINERS.register("dp-fedpt")
@dataclass(frozen=True)
class DPFedPT(PrivateUpdates):
    """FedPT with client-level DP: clipped updates with noise, averaged by the server.

    ``PromptTuner.start`` draws what is learned, tuning/transformers/prompt_tuning.py.
    The noise on the sum of all moves is N(0, sigma² C²), whoever adds it:

    - "clients-together": each of n participants adds N(0, sigma² C² / n). Epsilon holds
      for the sum. The server must see no more than that, so it is for secure sums, and
      all participants must add what they should: if m do not, m / n of it is missing.
    - "each-client": each adds all of N(0, sigma² C²). Epsilon holds for its upload,
      whatever the server and others do; the sum has n times the variance.
    - "server": clients trust the server, which sees their clean moves.

    "published-paper": each client adds N(0, sigma² C²) to its parameters as they are.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", section 2.4, item 2; sound as in McMahan, Ramage, Talwar and
    Zhang, "Learning differentially private recurrent language models", ICLR 2018,
    algorithm 1, with a fixed denominator and a fixed number of participants.

    Attributes:
        noise_by: By default "clients-together", and "each-client" as published.
        coordinates: How many numbers are sent; they are drawn anew for each round, the
            same for all clients, and known to all. No record has a part in the draw, so
            it costs no epsilon. 0 sends all.
    """

    noise_by: NoiseBy | None = None
    coordinates: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check_noise(self) -> "DPFedPT":
        published = self.mode == "published-paper"
        if published and self.noise_by not in (None, "each-client"):
            raise ConfigError(
                f"noise_by = {self.noise_by!r} was requested in mode {self.mode!r}, "
                'which knows "each-client" only. Leave it out, or use mode "sound"'
            )
        return self

    @property
    def noise_at(self) -> NoiseAt:
        """Who adds the noise, as certificates say it."""
        usual: NoiseBy = (
            "each-client" if self.mode == "published-paper" else "clients-together"
        )
        return NOISE_AT[self.noise_by or usual]

    @property
    def noises_uploads(self) -> bool:
        """Whether what a client sends carries noise of its own."""
        return self.epsilon is not None and self.noise_at != "server"

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the parameters, and of which of their numbers the moves are wanted."""
        places = self._places(server, at)
        return dict(server) if places is None else {**server, COORDINATES: places}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Send what training moved, clipped and with the client's noise; no weight."""
        moved, loss = self.moves(task, cohort, received, at)
        if COORDINATES in received:
            moved = moved.gather(1, received[COORDINATES])
        clipped = self.clipped(moved, "global", at)
        std, _ = self._noise(task, at)
        sent = self.noised(clipped, std, "noise", cohort, "global", at)
        events = self._events(task, at, moved.shape[1])
        return LocalResult({MOVED: sent}, {}, loss, events)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Move by the sum over the number of participants, with the server's noise."""
        total = inbox[MOVED]
        _, std = self._noise(task, at)
        if std:
            grid = Grid.of(std)
            drawn = grid.noises(total.shape, [at.secret("server noise")])
            total = grid.add(total, drawn[0])
        places = self._places(server, at)
        if places is not None:
            total = scattered(total, places, size_of(server))
        return moved_by(server, total / len(at.participants)), ()

    def noise_on_sum(
        self, before: Tensors, after: Tensors, total: Tensors, parties: int
    ) -> Float[Tensor, " some"]:
        """Return what the server added to a sum, from the broadcasts around it."""
        shift = [
            (after[name].double() - tensor.double()).flatten()
            for name, tensor in sorted(learned(before).items())
        ]
        row = torch.cat(shift)
        places = before.get(COORDINATES)
        return parties * (row if places is None else row[places]) - total[MOVED]

    def _places(self, server: Tensors, at: Round) -> Int[Tensor, " some"] | None:
        """Draw the numbers of a round; None where all are sent."""
        size = size_of(server)
        if not 0 < self.coordinates < size:
            return None
        order = torch.from_numpy(at.secret("coordinates").permutation(size))
        return order[: self.coordinates].sort().values

    def _noise(self, task: Task, at: Round) -> tuple[float, float]:
        """Return the standard deviations on an upload, and of the server's on the sum."""
        std = self.noise_multiplier(task) * self.clip_norm
        if self.noise_at == "server":
            return 0.0, std
        shares = len(at.participants) if self.noise_at == "distributed" else 1
        return std / math.sqrt(shares), 0.0

    def _events(self, task: Task, at: Round, values: int) -> Events:
        noise = self.noise_multiplier(task)
        event = self.event(task, "global", noise, self.noise_at, at, values=values)
        return (event,)
