"""FedRand: each client shares A or B by a coin, and keeps the other one."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.trainer import (
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
from privaudit.federated.transcripts.threat_models import View
from privaudit.federated.transcripts.transcript import Message
from privaudit.federated.weighted_mean import (
    WEIGHT,
    role_of,
    weight_of,
    weighted_upload,
)
from privaudit.tuning.transformers.learning import LoraTrainer
from privaudit.tuning.transformers.lora import chosen, factor_of

Factor = Literal["A", "B"]
FACTORS: tuple[Factor, Factor] = ("A", "B")
UNSEEN = "the factor that the client kept in its last round"


@TRAINERS.register("fedrand")
@dataclass(frozen=True)
class FedRand(LoraTrainer):
    """FedRand: a client takes one LoRA factor from the server, and keeps its other one.

    In every round each client tosses a coin, one for all layers: with probability
    ``send_a`` it takes A from the server and B from its own last round, else the
    reverse. Both are trained; only what came from the server goes back. The server
    averages each factor over those who sent it; what nobody sent stays. Behind a secure
    sum a factor that one client alone sent stands in the clear, without its name.

    Source: "FedRand: enhancing privacy in federated learning with randomized LoRA
    subparameter updates", equations 5 to 10, algorithms 1 and 2; table 3 for the
    ablations.

    Attributes:
        send_a: The coin's probability of A, in [0, 1]; 0.5 is published.
        past: Go on with the own last factor; without, both come from the server and
            one is sent (table 3, "w/o past parameters").
        normalize: Weigh a factor by the records of those who sent it; without, by
            those of all participants, which shrinks it (table 3, "w/o
            normalization").
        pairing: How an adversary completes a client's last upload. "last-sent": the
            other factor as the client last sent it, or the server's if it never did.
            "second-to-last", as the paper writes: from the client's round before; if
            that holds the same factor again, the server's. "server": always the
            server's.
    """

    reconstructs_from_all_rounds: ClassVar[bool] = True
    starts_from_broadcast: ClassVar[bool] = True

    send_a: Annotated[float, Field(ge=0, le=1)] = 0.5
    past: bool = True
    normalize: bool = True
    pairing: Literal["last-sent", "second-to-last", "server"] = "last-sent"

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Train both factors, and send the one that came from the server."""
        coins = torch.stack([self._coin(at, client) for client in cohort.clients])
        start = received
        if self.past:
            start = _mixed(received, kept or self._first(task, cohort, at), coins)
        trained, loss = self.train(task, cohort, start, at)
        sent, sends = _weighted(cohort, trained, coins)
        return LocalResult(sent, trained, loss, sends=sends)

    def single_step(self) -> Any:
        """Return the same trainer with one step from both of the server's factors."""
        return replace(self, epochs=1, batch_size=0, past=False)

    def with_choices_of(self, sent: Tensors) -> Any:
        """Return the trainer that takes and sends the factor that was sent."""
        return replace(self, send_a=float(weight_of("A") in sent))

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Average each factor over those who sent it."""
        weights = {f: inbox.get(weight_of(f), torch.zeros(())) for f in FACTORS}
        everyone = torch.stack(list(weights.values())).sum()
        state = dict(server)
        for name, tensor in server.items():
            weight = weights[_letter(name)]
            if weight > 0:
                total = weight if self.normalize else everyone
                state[name] = (inbox[name] / total).to(tensor.dtype)
        return state, ()

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Pair the client's last upload with its other factor, seen earlier."""
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
        if not view.sees_updates_of(client):
            return super().reconstruct(task, view, client)
        uploads = view.updates_of(client)
        seen = _without_weight(uploads[-1])
        if not seen:
            shared = view.last_broadcast(client).tensors
            return Reconstruction(shared, (UNSEEN,), estimated=True)
        other, staleness = self._other_factor(view, client, uploads)
        return Reconstruction({**other, **seen}, (UNSEEN,), staleness, estimated=True)

    def _first(self, task: Task, cohort: Cohort, at: Round) -> Stacked:
        """Return the public start: a client's own past before its first round."""
        start = self.start(task, at.seeds)
        return {n: t.expand(len(cohort), *t.shape) for n, t in start.items()}

    def _coin(self, at: Round, client: ClientId) -> Bool[Tensor, ""]:
        """Say whether a client takes and sends A."""
        return torch.tensor(at.stream("factor", client).coin(self.send_a))

    def _other_factor(
        self, view: View, client: ClientId, uploads: tuple[Message, ...]
    ) -> tuple[dict[str, Tensor], int]:
        """Return the factor that the last upload lacks, and its age in rounds."""
        last = uploads[-1]
        lacking: Factor = "B" if _sends(last, "A") else "A"
        server = {m.round: m.tensors for m in view.broadcasts_to(client)}
        earlier = [m for m in uploads[:-1] if _sends(m, lacking)]
        if self.pairing == "second-to-last":
            earlier = [m for m in uploads[-2:-1] if _sends(m, lacking)]
        if earlier and self.pairing != "server":
            return _without_weight(earlier[-1]), last.round - earlier[-1].round
        return chosen(server[last.round], lambda n: _letter(n) == lacking), 0


def _letter(name: str) -> Factor:
    return "A" if factor_of(name) == "A" else "B"


def _mixed(received: Stacked, kept: Stacked, coins: Bool[Tensor, " k"]) -> Stacked:
    """Take A from the server where the coin says so and B from the past, or reverse."""
    start = {}
    for name, tensor in received.items():
        from_server = coins if _letter(name) == "A" else ~coins
        start[name] = torch.where(from_server.view(-1, 1, 1), tensor, kept[name])
    return start


def _weighted(
    cohort: Cohort, trained: Stacked, coins: Bool[Tensor, " k"]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return both factors times the number of records, and who sends which."""
    sent = dict(weighted_upload(cohort, trained))
    sizes = sent.pop(WEIGHT)
    sends = {name: coins if _letter(name) == "A" else ~coins for name in trained}
    for factor, who in zip(FACTORS, (coins, ~coins), strict=True):
        sent[weight_of(factor)], sends[weight_of(factor)] = sizes, who
    return sent, sends


def _sends(upload: Message, factor: Factor) -> bool:
    return bool(upload.tensors.get(weight_of(factor), torch.zeros(())) > 0)


def _without_weight(upload: Message) -> dict[str, Tensor]:
    """Return the factor that was sent, its weight divided out; {} without records."""
    for factor in FACTORS:
        if _sends(upload, factor):
            weight = upload.tensors[weight_of(factor)]
            sent = chosen(upload.tensors, lambda n: role_of(n) == "model")
            return {name: tensor / weight for name, tensor in sent.items()}
    return {}
