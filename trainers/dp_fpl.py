"""DP-FPL: a shared and a private low-rank prompt, trained with noise on both."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, numbers_in
from privaudit.federation.threat_models import RoundSum, View
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
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import GaussianNoise, Mechanisms, split_budget
from privaudit.privacy.grid_accounting import widened_noise
from privaudit.tuning.prompts.gradients import ContextGradients
from privaudit.tuning.prompts.learning import CONTEXT_STD, start_context
from privaudit.tuning.prompts.low_rank import (
    Factors,
    Kind,
    Rank,
    Variant,
    by_factors,
    draw_factors,
    expected_local_share,
    factorize,
    reconstruct_gradient,
)
from privaudit.tuning.prompts.private_training import PrivateTrainer


@TRAINERS.register("dp-fpl")
@dataclass(frozen=True)
class DPFPL(PrivateTrainer):
    """DP-FPL: send the gradient of the global p_G, keep the low-rank local p_L.

    p_L = u v + r anew in every round; u and v get gradients, with noise, of which p_L's
    is rebuilt. One step per round. Released is p_G + p_L.

    Modes: "sound" samples by Poisson, clips each record's (g_u, g_v) jointly and its
    g_G, and shares epsilon between the two releases. "published-paper" is algorithm 1:
    it clips u, v and the global gradient of the batch's loss apart, and noises at the
    server. "published-code" also adds the term that equation 4 subtracts, divides by
    10, and runs SGD with momentum 0.9 and weight decay 5e-4. Not copied from that code:
    one optimiser for all clients, which carries one's gradients into another's prompt;
    one start of the local prompt for all; cutting every client to the smallest one's
    size, and the batches of a round that it computes and drops.

    Source: Tran et al., "Privacy-preserving personalized federated prompt learning for
    multimodal large language models", ICLR 2025, algorithm 1, equation 4, theorem 3.3.

    Attributes:
        rank: Of the factors, at least 1; one beyond the tokens is taken as their
            number, where u spans everything. "full" trains p_L itself.
        factorization: "both" (published): u and v orthonormal; "left": u only.
        residual: Whether r is part of the prompt in training; without, it is p_G + u v.
        release_residual: Whether what is released, and so tested, is p_G + p_L, r
            included; without, p_G + u v of a fresh factorization, as the paper tests
            "without residual". Full rank has no residual.
        noise_at: Where the global part gets its noise: "server"; "client": each client
            adds all of it; "distributed": each adds a share, under a secure sum.
            Published modes know "server" only.
        learning_rate_global: Above 0. The default suits the embedded model, where
            without noise it is beyond stability: rounding errors grow in the last
            rounds; 0.01 is within. Published is 1e-4 on ViT-B/16.
        learning_rate_local: Above 0; published 1e-4 on ViT-B/16.
        clip_local: In place of ``clip_norm`` for u and v, or for p_L at full rank.
        clip_global: In place of ``clip_norm`` for the global gradient.
        local_share: Of the budget (in 1/noise^2) for the local release, in (0, 1), in
            mode "sound"; half is equal noise multipliers.
    """

    accepts_gradient_canaries: ClassVar[Literal[True]] = True

    usual_rounds: ClassVar[int] = 60

    rank: Rank = 8
    factorization: Kind = "both"
    residual: bool = True
    release_residual: bool = True
    noise_at: Literal["server", "client", "distributed"] = "server"
    learning_rate_global: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.02
    learning_rate_local: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.0005
    clip_local: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    clip_global: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    local_share: Annotated[float, Field(gt=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _check_mode(self) -> "DPFPL":
        if self.mode != "sound" and self.noise_at != "server":
            raise ConfigError(
                f"noise_at = {self.noise_at!r} was requested in mode {self.mode!r}, "
                'where the server adds the noise. Use "server", or mode "sound"'
            )
        if self.mode == "published-code" and self.factorization == "left":
            raise ConfigError(
                'factorization = "left" was requested in mode "published-code", which '
                'knows "both" only. Use "both", or another mode'
            )
        return self

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random global prompt, and what an optimiser remembers."""
        return self.begin({"context": start_context(task, seeds)})

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a random local prompt of the client's own, N(0, 0.02^2)."""
        shape = (task.prompts.context_tokens, task.prompts.width)
        stream = seeds.stream("local prompt", client=client)
        local = stream.normal_tensor(shape) * CONTEXT_STD
        return self.begin({"local": local})

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Move the local prompts one step, and send the gradients by the global one.

        What is sent is a sum (or batch mean) of clipped gradients, and no size.
        """
        factors = draw_factors(kept["local"], self.rank, self.factorization, cohort, at)
        contexts = received["context"] + self._forward_part(kept["local"], factors)
        batch = self.draw_batch(task, cohort, at)
        gradients = ContextGradients.forward(
            task, contexts, batch, by_record=self.sums_clipped
        )
        mechanisms = self._mechanisms(task, at)
        apart = mechanisms.local
        local, upload = self.clipped(
            gradients,
            [
                ("local", partial(by_factors, factors=factors), apart.clip_norm),
                ("global", lambda g: {"gradient": g}, mechanisms.shared.clip_norm),
            ],
            at,
        )
        local = self.add_noise(local, apart.std, "local noise", cohort, at, "local")
        upload = self.add_noise(
            upload, mechanisms.upload_std, "upload noise", cohort, at, "global",
            reach=self._reach(task),
        )  # fmt: skip
        values = numbers_in(local)
        step = self._local_gradient(local, factors) / self.divisor(task)
        rate = self.learning_rate_local * self.rate_share(task, at.index)
        moved = self.step_along(kept, {"local": step}, rate)
        events = self._events(task, mechanisms, at, values)
        return LocalResult(upload, moved, gradients.losses, events)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Step along the mean of the clients' gradients, with the server's noise.

        The mean is over a public constant: participants times the expected batch.
        """
        total, parties = inbox["gradient"], len(at.participants)
        mechanisms = self._mechanisms(task, at)
        total = self.noised_by_server(total, mechanisms.server_std, at)
        mean = total / (parties * self.divisor(task))
        rate = self.learning_rate_global * self.rate_share(task, at.index)
        moved = self.step_along(server, {"context": mean}, rate)
        return moved, self._events(task, mechanisms, at)

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the sum of both prompts."""
        return {"context": received["context"] + self._released_part(kept["local"])}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the global prompt plus what uploads tell of p_L.

        A client's upload is the gradient of its private prompt too: whoever sees it
        integrates it as the client did; and whoever adds the server's noise takes the
        global prompt without it. Left alone, the sum of uploads comes closer to
        the client's own update than after projections onto simulated factors (a
        client's random draws are not known), so it is only scaled. It lacks the noise
        that the client adds, and so may tell more of a record than the client's prompt.
        """
        shared = self._shared(task, view, client)
        if not view.sees_updates_of(client):
            hidden = ("the client's local prompt",)
            return Reconstruction(
                {"context": shared}, hidden, shared={"context": shared}
            )
        state = self.begin({"local": torch.zeros_like(shared)})
        scale = self._local_share_of_upload(task) / self.divisor(task)
        for message in view.updates_of(client):
            step = scale * message.tensors["gradient"]
            rate = self.learning_rate_local * self.rate_share(task, message.round)
            state = self.step_along(state, {"local": step}, rate)
        missing = ["the local prompt's random start"]
        if self.rank != "full":
            missing.append("the factors' random start")
        if self.epsilon is not None:
            missing.append("the noise on the local prompt")
        reconstructed = {"context": shared + self._released_part(state["local"])}
        return Reconstruction(
            reconstructed, tuple(missing), 0, True, shared={"context": shared}
        )

    def _shared(self, task: Task, view: View, client: ClientId) -> Tensor:
        """Return the global prompt, as clean sums make it where the view holds them.

        The server adds its noise to what it broadcasts, and knows the sums before.
        """
        adds_noise = self.noise_at == "server" and self.epsilon is not None
        if not (adds_noise and view.last_sum):
            return view.last_broadcast(client).tensors["context"]
        key = ("clean prompt", repr(self), task.rounds)
        return view.once(key, lambda: self._clean(task, view.sums))

    def _clean(self, task: Task, rounds: Sequence[RoundSum]) -> Tensor:
        state = self.begin(rounds[0].broadcast)
        for one in rounds:
            mean = one.mean("gradient") / self.divisor(task)
            rate = self.learning_rate_global * self.rate_share(task, one.index)
            state = self.step_along(state, {"context": mean}, rate)
        return state["context"]

    def _local_share_of_upload(self, task: Task) -> float:
        """Return by what an upload is scaled to give the local gradient, expected."""
        of_global = self.clip_global or self.clip_norm
        ratio = (self.clip_local or self.clip_norm) / of_global if self.clips else None
        return expected_local_share(
            self.rank,
            task.prompts.context_tokens,
            task.prompts.width,
            self.factorization,
            self._variant,
            clip_ratio=ratio,
            clips_jointly=self.mode == "sound",
        )

    @property
    def _variant(self) -> Variant:
        code = self.mode == "published-code"
        return "published-code" if code else "equation-4"

    def _forward_part(self, local: Tensor, factors: Factors | None) -> Tensor:
        if factors is None or self.residual:
            return local
        return factors.u @ factors.v

    def _released_part(self, local: Float[Tensor, "*k n w"]) -> Float[Tensor, "*k n w"]:
        """Return what of p_L is released; a release's factors start from public draws."""
        if self.release_residual or self.rank == "full":
            return local
        stream = Seeds(0).stream("factorization of a release")
        start = stream.normal_tensor(
            (local.shape[-1], min(self.rank, *local.shape[-2:]))
        )
        factors = factorize(
            local, start.expand(*local.shape[:-2], *start.shape), self.factorization
        )
        return factors.u @ factors.v

    def _mechanisms(self, task: Task, at: Round) -> Mechanisms:
        """Return the round's noise: each published release is noised for itself."""
        local = shared = self.noise_multiplier(task)
        if self.mode == "sound":
            local, shared = split_budget(local, self.local_share)
        mechanisms = Mechanisms(
            GaussianNoise(local, self.clip_local or self.clip_norm),
            GaussianNoise(shared, self.clip_global or self.clip_norm),
            self.noise_at,
            len(at.participants),
        )
        return (
            self._widened(task, mechanisms, at) if mechanisms.upload_std else mechanisms
        )

    def _widened(self, task: Task, exact: Mechanisms, at: Round) -> Mechanisms:
        """Return more noise on uploads: rounding moves them too, on their grid.

        A grid that more noise makes coarser is taken for the first one as well.

        Raises:
            ConfigError: Rounding alone costs more than epsilon.
        """
        shares = exact.parties if self.noise_at == "distributed" else 1
        widened, fewest = exact, math.inf
        for _ in range(2):
            grid = Grid.of(widened.upload_std, reach=self._reach(task), step=at.step)
            fewest = min(fewest, grid.scale * math.sqrt(shares))
            noise = widened_noise(
                exact.shared.noise_multiplier, self._numbers(task), fewest
            )
            if noise == math.inf:
                raise ConfigError(
                    f"epsilon = {self.epsilon:g} was requested with noise_at = "
                    f"{self.noise_at!r}, but that uploads are rounded to the grid of "
                    "their noise costs more than this. Raise epsilon, or under masks "
                    'the clip norm, or use noise_at = "server"'
                )
            widened = replace(
                exact, shared=replace(exact.shared, noise_multiplier=noise)
            )
        return widened

    def _reach(self, task: Task) -> float:
        """Return what no coordinate of a sum of clipped gradients passes, in earnest.

        That of as many records as a batch has, all along one coordinate.
        """
        most = min(self.batch, max(task.candidates.values()))
        return most * (self.clip_global or self.clip_norm)

    def _numbers(self, task: Task) -> int:
        return task.prompts.context_tokens * task.prompts.width

    def _local_gradient(self, parts: Tensors, factors: Factors | None) -> Tensor:
        """Return the gradient by p_L, rebuilt from those by u and v."""
        if factors is None:
            return parts["local"]
        return reconstruct_gradient(
            parts["u"], parts["v"], factors.u, factors.v,
            self.factorization, self._variant,
        )  # fmt: skip

    def _events(
        self, task: Task, mechanisms: Mechanisms, at: Round, kept: int = 0
    ) -> Events:
        """Describe what the clients did, who noised ``kept`` numbers; or the server."""
        if not self.clips:
            return ()
        noise_at, parties = self.noise_at, mechanisms.parties
        shared = self.event(task, "global", mechanisms.shared, 1, noise_at, parties)
        if noise_at == "server":
            grid = self.grid(mechanisms.server_std, at)
        else:
            grid = self.grid(mechanisms.upload_std, at, self._reach(task))
        shared = shared.on(grid, self._numbers(task))
        if not kept:
            return (shared,) if noise_at == "server" else ()
        tensors = 1 if self.rank == "full" else 2
        local = self.event(task, "local", mechanisms.local, tensors, "client", parties)
        local = local.on(self.grid(mechanisms.local.std, at), kept)
        return (local,) if noise_at == "server" else (local, shared)
