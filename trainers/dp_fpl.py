"""DP-FPL: a shared and a private low-rank prompt, trained with noise on both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.errors import ConfigError
from privaudit.privacy.clipping import clip_each
from privaudit.privacy.factorization import Factors, factorize, reconstruct_gradient
from privaudit.private_training import Mechanism, PrivateTrainer, split_budget
from privaudit.prompt_gradients import ContextGradients
from privaudit.prompt_learning import CONTEXT_STD, start_context
from privaudit.seeds import Seeds
from privaudit.tensors import Stacked, Tensors
from privaudit.threats import View
from privaudit.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    LocalResult,
    PublicTask,
    Rebuilt,
    Round,
)

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4  # of the published code


@plain_dataclass(frozen=True)
class Mechanisms:
    """What protects one round: its two releases, and who adds noise to the shared one.

    Attributes:
        local: Of the gradients by u and v.
        shared: Of the sum over clients of gradients by the global prompt.
        noise_at: Who adds the shared one's noise.
        parties: How many clients take part.
    """

    local: Mechanism
    shared: Mechanism
    noise_at: Literal["server", "client", "distributed"]
    parties: int

    @property
    def upload_std(self) -> float:
        """Standard deviation of the noise on one client's upload."""
        shares = self.parties if self.noise_at == "distributed" else 1
        return 0.0 if self.noise_at == "server" else self.shared.std / math.sqrt(shares)

    @property
    def server_std(self) -> float:
        """Standard deviation of the server's noise on the sum of the uploads."""
        return self.shared.std if self.noise_at == "server" else 0.0


@TRAINERS.register("dp-fpl")
@dataclass(frozen=True)
class DPFPL(PrivateTrainer):
    """Train p_G + p_L: send the gradient by p_G, and keep p_L, which is factorised.

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
        rank: Of the factors, at least 1 and at most the number of tokens; "full"
            trains p_L itself.
        factorization: "both" (published): u and v orthonormal; "left": u only.
        residual: Whether r is part of the prompt in training; without, it is p_G + u v.
        noise_at: Where the global part gets its noise: "server"; "client": each client
            adds all of it; "distributed": each adds a share, under a secure sum.
            Published modes know "server" only.
        learning_rate_global: Above 0; published 1e-4 on ViT-B/16.
        learning_rate_local: Above 0; published 1e-4 on ViT-B/16.
        clip_local: In place of ``clip_norm`` for u and v, or for p_L at full rank.
        clip_global: In place of ``clip_norm`` for the global gradient.
        local_share: Of the budget (in 1/noise^2) for the local release, in (0, 1), in
            mode "sound"; half is equal noise multipliers.
    """

    rank: Annotated[int, Field(ge=1)] | Literal["full"] = 8
    factorization: Literal["both", "left"] = "both"
    residual: bool = True
    noise_at: Literal["server", "client", "distributed"] = "server"
    learning_rate_global: Annotated[float, Field(gt=0)] = 0.02
    learning_rate_local: Annotated[float, Field(gt=0)] = 0.02
    clip_local: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    clip_global: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    local_share: Annotated[float, Field(gt=0, lt=1)] = 0.5

    @model_validator(mode="after")
    def _check_mode(self) -> "DPFPL":
        if self.mode != "sound" and self.noise_at != "server":
            raise ConfigError(
                f"noise_at = {self.noise_at!r} was asked for in mode {self.mode!r}, "
                'where the server adds the noise. Take "server", or mode "sound"'
            )
        if self.mode == "published-code" and self.factorization == "left":
            raise ConfigError(
                'factorization = "left" was asked for in mode "published-code", which '
                'knows "both" only. Take "both", or another mode'
            )
        return self

    def start(self, task: PublicTask, seeds: Seeds) -> Tensors:
        """Return a random global prompt, and the code's momentum."""
        return self._with_velocity({"context": start_context(task, seeds)})

    def start_client(self, task: PublicTask, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a random local prompt of the client's own, N(0, 0.02^2)."""
        shape = (task.prompts.context_tokens, task.prompts.width)
        generator = seeds.generator("local prompt", client=client)
        local = torch.randn(shape, generator=generator) * CONTEXT_STD
        return self._with_velocity({"local": local})

    def broadcast(self, server: Tensors, client: ClientId) -> Tensors:
        """Send the global prompt to everyone."""
        return {"context": server["context"]}

    def local_update(
        self,
        task: PublicTask,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Move the local prompts one step, and send the gradients by the global one.

        What is sent is a sum (or batch mean) of clipped gradients, and no size.
        """
        factors = self._factorize(kept["local"], cohort, at)
        contexts = received["context"] + self._forward_part(kept["local"], factors)
        gradients = ContextGradients.forward(
            task, contexts, self.draw_batch(task, cohort, at)
        )
        mechanisms = self._mechanisms(task, len(at.participants))
        local, upload = self._clipped(gradients, factors, mechanisms)
        local = self.add_noise(local, mechanisms.local.std, "local noise", cohort, at)
        upload = self.add_noise(
            upload, mechanisms.upload_std, "upload noise", cohort, at
        )
        step = self._local_gradient(local, factors) / self.divisor(task)
        moved = self._descend(kept, "local", step, self.learning_rate_local)
        events = self._events(task, at, mechanisms, by_client=True)
        return LocalResult(upload, moved, gradients.losses, events)

    def aggregate(
        self,
        task: PublicTask,
        server: Tensors,
        inbox: Tensors | Mapping[ClientId, Tensors],
        at: Round,
    ) -> tuple[Tensors, Events]:
        """Step along the mean of the clients' gradients, with the server's noise.

        The mean is over a public constant: participants times the expected batch.
        """
        total, parties = inbox["gradient"], len(at.participants)
        assert isinstance(total, Tensor)
        mechanisms = self._mechanisms(task, parties)
        generator = at.generator("server noise")
        noise = self.noise(tuple(total.shape), mechanisms.server_std, generator)
        mean = (total + noise) / (parties * self.divisor(task))
        moved = self._descend(server, "context", mean, self.learning_rate_global)
        return moved, self._events(task, at, mechanisms, by_client=False)

    def release(
        self,
        task: PublicTask,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Release the sum of both prompts."""
        return {"context": received["context"] + kept["local"]}

    def rebuild(self, task: PublicTask, view: View, client: ClientId) -> Rebuilt:
        raise NotImplementedError

    def _factorize(
        self, local: Float[Tensor, "k tokens width"], cohort: Cohort, at: Round
    ) -> Factors | None:
        if self.rank == "full":
            return None
        starts = [
            torch.randn(
                local.shape[-1],
                self.rank,
                generator=at.generator("factorization", client),
            )
            for client in cohort.clients
        ]
        return factorize(local, torch.stack(starts), self.factorization)

    def _forward_part(self, local: Tensor, factors: Factors | None) -> Tensor:
        if factors is None or self.residual:
            return local
        return factors.u @ factors.v

    def _mechanisms(self, task: PublicTask, parties: int) -> Mechanisms:
        """Return the round's noise: each published release is noised for itself."""
        local = shared = self.noise_multiplier(task)
        if self.mode == "sound":
            voices = parties if self.noise_at == "client" else 1
            local, shared = split_budget(local, self.local_share, voices)
        return Mechanisms(
            Mechanism(local, self.clip_local or self.clip_norm),
            Mechanism(shared, self.clip_global or self.clip_norm),
            self.noise_at,
            parties,
        )

    def _clipped(
        self,
        gradients: ContextGradients,
        factors: Factors | None,
        mechanisms: Mechanisms,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradients by u and v, and that by the global prompt, clipped."""
        if self.clips and self.clips_records:
            return self._clipped_records(gradients, factors, mechanisms)
        whole = gradients.of_batch()
        if not self.clips_records:
            whole = whole / gradients.sizes.clamp(min=1)[:, None, None]
        local, shared = _by_factors(whole, factors), {"gradient": whole}
        if not self.clips:
            return local, shared
        return (
            clip_each(local, mechanisms.local.clip_norm),
            clip_each(shared, mechanisms.shared.clip_norm),
        )

    def _clipped_records(
        self,
        gradients: ContextGradients,
        factors: Factors | None,
        mechanisms: Mechanisms,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        local: dict[str, Tensor] = {}
        shared: dict[str, Tensor] = {}
        for some, mask in gradients.by_record():
            parts = _by_factors(some, factors)
            _add(local, self.clipped_sums(parts, mechanisms.local.clip_norm, mask))
            whole = {"gradient": some}
            _add(shared, self.clipped_sums(whole, mechanisms.shared.clip_norm, mask))
        return local, shared

    def _local_gradient(self, parts: Tensors, factors: Factors | None) -> Tensor:
        """Return the gradient by p_L, rebuilt from those by u and v."""
        if factors is None:
            return parts["local"]
        return reconstruct_gradient(
            parts["u"],
            parts["v"],
            factors.u,
            factors.v,
            self.factorization,
            "published-code" if self.mode == "published-code" else "equation-4",
        )

    def _events(
        self, task: PublicTask, at: Round, mechanisms: Mechanisms, *, by_client: bool
    ) -> Events:
        """Describe what the clients did, or what the server did."""
        if not self.clips:
            return ()
        parties = mechanisms.parties
        shared = self.event(
            task,
            "global",
            mechanisms.shared,
            tensors=1,
            noise_at=self.noise_at,
            parties=parties,
        )
        if not by_client:
            return (shared,) if self.noise_at == "server" else ()
        local = self.event(
            task,
            "local",
            mechanisms.local,
            tensors=1 if self.rank == "full" else 2,
            noise_at="client",
            parties=parties,
        )
        return (local,) if self.noise_at == "server" else (local, shared)

    def _with_velocity(self, state: dict[str, Tensor]) -> Tensors:
        if self.mode == "published-code":
            state["velocity"] = torch.zeros_like(next(iter(state.values())))
        return state

    def _descend(
        self, state: Stacked, name: str, gradient: Tensor, learning_rate: float
    ) -> dict[str, Tensor]:
        """Return the state after one step of SGD, the code's with momentum and decay."""
        if "velocity" not in state:
            return {name: state[name] - learning_rate * gradient}
        velocity = MOMENTUM * state["velocity"] + gradient + WEIGHT_DECAY * state[name]
        return {name: state[name] - learning_rate * velocity, "velocity": velocity}


def _by_factors(
    gradient: Float[Tensor, "k *records tokens width"], factors: Factors | None
) -> dict[str, Tensor]:
    """Return g v.T and u.T g, or g itself at full rank."""
    if factors is None:
        return {"local": gradient}
    u, v = factors.u, factors.v
    if gradient.ndim == 4:
        u, v = u.unsqueeze(1), v.unsqueeze(1)
    return {"u": gradient @ v.mT, "v": u.mT @ gradient}


def _add(total: dict[str, Tensor], part: Tensors) -> None:
    for name, tensor in part.items():
        total[name] = total[name] + tensor if name in total else tensor
