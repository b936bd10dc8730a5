"""FedAMP on prompts: every client has its own, and those alike pull each other."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
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
from privaudit.tuning.optimiser import pull_to
from privaudit.tuning.prompts.learning import LocalSgd, start_context


@TRAINERS.register("prompt-fedamp")
@dataclass(frozen=True)
class PromptFedAMP(LocalSgd):
    """FedAMP on prompts: each client is pulled towards similar clients' prompts.

    The server keeps the last prompt of each client and sends client i
    u_i = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j, with
    xi_ij = alpha / sigma * exp(-|w_i - w_j|^2 / sigma); the client goes on from w_i
    with the objective F_i(w) + lambda / (2 alpha) |w - u_i|^2, and sends w: its
    personal model is what it sends. All prompts start as one. Who sits out stays as it
    is, and weighs as before.

    The penalty has a gradient here; in the PFLlib code it is detached, so that clients
    there train alone.

    Source: Huang et al., "Personalized cross-silo federated learning on non-IID data",
    AAAI 2021, algorithm 1.

    Attributes:
        sigma: Of squared distances between prompts, above 0: beyond a few sigma two
            clients ignore each other.
        alpha: The server's step, above 0 and at most sigma / (clients - 1), so that
            every mix is a mean. None is sigma / clients: prompts that are all alike
            weigh the same.
        attraction: lambda, at least 0; 0 is training alone.
    """

    aggregation: ClassVar[Literal["sum", "individual"]] = "individual"

    sigma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    attraction: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def step(self, clients: int) -> float:
        """Return alpha for that many clients.

        Raises:
            ConfigError: It would give a client's own prompt a negative weight.
        """
        if self.alpha is None:
            return self.sigma / clients
        most = self.sigma / max(1, clients - 1)
        if self.alpha > most:
            raise ConfigError(
                f"alpha = {self.alpha:g} was requested, but with {clients} clients and "
                f"sigma = {self.sigma:g} at most {most:.3g} gives means of prompts. "
                "Take that or less, or leave it out."
            )
        return self.alpha

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return one random context as everybody's."""
        self.step(len(task.clients))
        context = start_context(task, seeds)
        return {client: context.clone() for client in task.clients}

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return no prompt yet: the first mix is everybody's start."""
        shape = (task.prompts.context_tokens, task.prompts.width)
        return {"context": torch.zeros(shape), "begun": torch.tensor(False)}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send each client its own mix."""
        others = [w.flatten() for name, w in server.items() if name != client]
        own_context = server[client]
        if not others:
            return {"mix": own_context}
        mix = pass_messages(
            own_context.flatten(),
            torch.stack(others),
            self.step(len(server)),
            self.sigma,
        )
        return {"mix": mix.view_as(own_context)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the client's own prompt near its mix, and send it."""
        strength = self.attraction / self.step(len(task.clients))
        to_mix = pull_to({"context": received["mix"]}, strength)
        contexts, loss = self.train(task, cohort, _own(received, kept), at, to_mix)
        begun = torch.ones_like(kept["begun"])
        return LocalResult(
            {"context": contexts}, {"context": contexts, "begun": begun}, loss
        )

    def aggregate(
        self, task: Task, server: Tensors, inbox: Mapping[ClientId, Tensors], at: Round
    ) -> tuple[Tensors, Events]:
        """Put each prompt in the place of its client's last one."""
        new: dict[ClientId, Tensor] = {c: sent["context"] for c, sent in inbox.items()}
        return dict(server) | new, ()

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the client's own prompt; the mix, if it never trained."""
        return {"context": _own(received, kept)}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's own prompt where it is seen, else a mix.

        A peer sees its own mix only, in which the client's prompt has a part.
        """
        if view.sees_updates_of(client):
            return Reconstruction(view.updates_of(client)[-1].tensors)
        mix = view.last_broadcast(client).tensors["mix"]
        return Reconstruction({"context": mix}, missing=("the client's own prompt",))


def _own(received: Stacked, kept: Stacked) -> Tensor:
    """Return each client's own prompt, or its mix before it has one."""
    return torch.where(kept["begun"][:, None, None], kept["context"], received["mix"])


def attention(
    own: Float[Tensor, " size"],
    others: Float[Tensor, "others size"],
    alpha: float,
    sigma: float,
) -> Float[Tensor, " others"]:
    """Return xi_ij = alpha A'(|w_i - w_j|^2), with A'(x) = exp(-x / sigma) / sigma.

    Source: Huang et al., "Personalized cross-silo federated learning on non-IID data",
    AAAI 2021, algorithm 1, with A(x) = 1 - exp(-x / sigma).

    Prompts are flat: ``own`` is w_i, ``others`` are every w_j but that.
    """
    squares = (others - own).square().sum(dim=1)
    return alpha * torch.exp(-squares / sigma) / sigma


def pass_messages(
    own: Float[Tensor, " size"],
    others: Float[Tensor, "others size"],
    alpha: float,
    sigma: float,
) -> Float[Tensor, " size"]:
    """Return u_i = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j, over all others j.

    A mean of prompts as long as the attention sums to at most 1, which is certain if
    alpha times the number of others is at most sigma.
    """
    weights = attention(own, others, alpha, sigma)
    return own + weights @ (others - own)
