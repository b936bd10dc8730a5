"""FedRand: each client shares A or B by a coin, and keeps the other one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, stack, unstack
from privaudit.federation.threat_models import View
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
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import (
    MOST_BITS,
    WEIGHT,
    quantised,
    role_of,
    weight_in,
    weight_of,
    weighted_upload,
    with_numbers,
)
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum
from privaudit.tuning.optimiser import ADDED
from privaudit.tuning.transformers.lora import LoraTrainer, factor_of

Shares = Mapping[str, Bool[Tensor, " k"]]
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
        pairing: How an adversary completes a client's last upload. "last-sent": what is
            lacking as the client last sent it, or the server's if it never did.
            "second-to-last", as the paper writes: from the client's round before; what
            that lacks too is the server's. "server": always the server's.
        sublayers: Share of the adapted layers whose factor a client takes and sends in
            a round, drawn anew, at least one layer; 1 is published. The others go on
            from the client's own past and stay with it: the paper's future work.
        only: The names of the layers that are taken and sent, in place of a draw; ()
            draws.
        upload_bits: Of each number that a client sends, 1 to 16: the paper's future
            work, too. Each factor of each layer has its own range, and the server needs
            every upload by itself. None sends numbers as they are, in 32.
        rounding: "stochastic", without bias, or "nearest".
    """

    reconstructs_from_all_rounds: ClassVar[bool] = True
    starts_from_broadcast: ClassVar[bool] = True

    send_a: Annotated[float, Field(ge=0, le=1)] = 0.5
    past: bool = True
    normalize: bool = True
    pairing: Literal["last-sent", "second-to-last", "server"] = "last-sent"
    sublayers: Annotated[float, Field(gt=0, le=1), ADDED] = 1.0
    only: Annotated[tuple[str, ...], ADDED] = ()
    upload_bits: Annotated[int | None, Field(ge=1, le=MOST_BITS), ADDED] = None
    rounding: Annotated[Literal["stochastic", "nearest"], ADDED] = "stochastic"

    @property
    def aggregation(self) -> Literal["sum", "individual"]:  # type: ignore[override]
        """What the server needs: codes of different ranges have no sum."""
        return "individual" if self.upload_bits else "sum"

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return one pair for each linear layer, the same for equal seeds.

        Raises:
            ConfigError: A layer was named that the model does not have.
        """
        unknown = sorted(set(self.only) - set(task.language.targets))
        if unknown:
            raise ConfigError(
                f"The layer {unknown[0]!r} was named in only, and the model has "
                f"{', '.join(task.language.targets)}. Name one of these."
            )
        return super().start(task, seeds)

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train both factors, and send what came from the server."""
        shares = self._shares(list(received), cohort, at)
        start = received
        if self.past:  # of the server what is shared, and the rest of the past
            past = kept or self._first(task, cohort, at)
            start = {
                name: torch.where(shares[name].view(-1, 1, 1), tensor, past[name])
                for name, tensor in received.items()
            }
        trained, loss = self.train(task, cohort, start, at)
        sent, sends = self._weighted(cohort, trained, shares)
        if self.upload_bits:
            for name in trained:
                draws = self._draws(name, trained[name], cohort, at)
                codes = quantised(name, trained[name], self.upload_bits, draws)
                sent |= codes
                sends |= dict.fromkeys(codes, shares[name])
        return LocalResult(sent, trained, loss, sends=sends)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Average each factor over those who sent it."""
        if self.upload_bits:
            inbox = secure_sum([_numbers(sent, server) for sent in inbox.values()])
        everyone = torch.stack(
            [inbox[n] for n in inbox if role_of(n) == "weight"]
        ).sum()
        if WEIGHT in inbox:
            everyone = inbox[WEIGHT]
        state = dict(server)
        for name, tensor in server.items():
            weight = weight_in(inbox, name)
            if name in inbox and weight is not None and weight > 0:
                total = weight if self.normalize else everyone
                state[name] = (inbox[name] / total).to(tensor.dtype)
        return state, ()

    def single_step(self) -> Any:
        """Return the same trainer with one step from all that the server has, unrounded."""
        return replace(
            self, epochs=1, batch_size=0, past=False,
            sublayers=1.0, only=(), upload_bits=None,
        )  # fmt: skip

    def with_choices_of(self, sent: Tensors) -> Any:
        """Return the trainer that takes and sends the factors that were sent."""
        names = [name for name in sent if role_of(name) == "model"]
        only = tuple(map(_layer, names)) if self._in_part else ()
        send_a = float(any(factor_of(name) == "A" for name in names))
        return replace(self, send_a=send_a, only=only)

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Complete the client's last upload with what it sent earlier."""
        if not view.sees_updates_of(client):
            return super().rebuild(task, view, client)
        uploads = view.updates_of(client)
        down = {m.round: m.tensors for m in view.broadcasts_to(client)}
        last = uploads[-1].round
        if not _seen(uploads[-1], down[last]):
            shared = view.last_broadcast(client).tensors
            return Reconstruction(shared, (UNSEEN,), estimated=True)
        model, staleness = dict(down[last]), 0
        lacking = set(model)
        for upload in reversed(self._paired(uploads)):
            seen = _seen(upload, down[last])
            new = lacking & seen.keys()
            model |= {name: seen[name] for name in new}
            lacking -= new
            staleness = last - upload.round if new else staleness
        return Reconstruction(model, (UNSEEN,), staleness, estimated=True)

    def _paired(self, uploads: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the uploads that a model is put together from."""
        if self.pairing == "last-sent":
            return uploads
        return uploads[-2:] if self.pairing == "second-to-last" else uploads[-1:]

    def _first(self, task: Task, cohort: Cohort, at: Round) -> Stacked:
        """Return the public start: a client's own past before its first round."""
        start = self.start(task, at.seeds)
        return {n: t.expand(len(cohort), *t.shape) for n, t in start.items()}

    def _coin(self, at: Round, client: ClientId) -> bool:
        """Say whether a client takes and sends A."""
        return at.stream("factor", client).coin(self.send_a)

    @property
    def _in_part(self) -> bool:
        """Whether a client may keep all of a layer to itself."""
        return self.sublayers < 1 or bool(self.only)

    def _shares(self, names: Sequence[str], cohort: Cohort, at: Round) -> Shares:
        """Say of each tensor which clients take and send it."""
        coins = torch.tensor([self._coin(at, client) for client in cohort.clients])
        layers = list(dict.fromkeys(map(_layer, names)))
        drawn = [self._drawn(layers, client, at) for client in cohort.clients]
        return {
            name: (coins if factor_of(name) == "A" else ~coins)
            & torch.tensor([_layer(name) in some for some in drawn])
            for name in names
        }

    def _drawn(
        self, layers: Sequence[str], client: ClientId, at: Round
    ) -> Sequence[str]:
        if self.only or self.sublayers == 1:
            return self.only or layers
        order = at.stream("sublayers", client).permutation(len(layers)).tolist()
        return [layers[n] for n in order[: math.ceil(self.sublayers * len(layers))]]

    def _weighted(
        self, cohort: Cohort, trained: Stacked, shares: Shares
    ) -> tuple[dict[str, Tensor], dict[str, Bool[Tensor, " k"]]]:
        """Return all factors times the number of records, and who sends which.

        Beside each factor its weight: one for all layers, where all are sent.
        """
        sent, sends = dict(weighted_upload(cohort, trained)), dict(shares)
        sizes = sent[WEIGHT]
        if not self._in_part:
            del sent[WEIGHT]
        for name, who in shares.items():
            weight = weight_of(name if self._in_part else factor_of(name))
            sent[weight], sends[weight] = sizes, who
        return sent, sends

    def _draws(
        self, name: str, tensor: Tensor, cohort: Cohort, at: Round
    ) -> Tensor | None:
        if self.rounding == "nearest":
            return None
        streams = (at.stream(f"rounding {name}", c) for c in cohort.clients)
        return torch.stack([s.uniform_tensor(tensor.shape[1:]) for s in streams])


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _numbers(upload: Tensors, like: Tensors) -> Tensors:
    """Return an upload with numbers in place of codes."""
    return unstack(with_numbers(stack([upload]), like), 1)[0]


def _seen(upload: Message, like: Tensors) -> dict[str, Tensor]:
    """Return what was sent, its weight divided out; {} without records."""
    numbers, seen = _numbers(upload.tensors, like), dict[str, Tensor]()
    for name in (name for name in numbers if role_of(name) == "model"):
        weight = weight_in(numbers, name)
        if weight is not None and weight > 0:
            seen[name] = numbers[name] / weight
    return seen
