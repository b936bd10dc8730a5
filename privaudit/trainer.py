"""The trainer interface, and the names of all trainers.

A trainer says what a client trains, sends and keeps, and how the server combines it.
It never sends anything: :mod:`privaudit.federation` does, and so records all that is
sent. Its functions are pure, which is what lets a run be resumed, a cohort be stacked
and an adversary replay a client with other records in its place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from privaudit.privacy.mechanism import MechanismEvent
from privaudit.registry import Registry
from privaudit.seeds import Seeds
from privaudit.tensors import Stacked, Tensors, alike, stack
from privaudit.threats import View

ClientId = str
Signal = Literal["log_probabilities"]
Signals = Mapping[Signal, Tensor]
Events = tuple[MechanismEvent, ...]
Inbox = Mapping[str, Any]  # the sum: tensors by name; individual: tensors by client


@dataclass(frozen=True)
class Records:
    """Encoded pictures and their classes.

    Attributes:
        features: Image features, l2-normalised.
        labels: Class indices.
        tokens: The pictures' parts in the same space, l2-normalised; None unless the
            trainer asks for them.
    """

    features: Float[Tensor, "records dim"]
    labels: Int[Tensor, " records"]
    tokens: Float[Tensor, "records parts dim"] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, chosen: Tensor) -> "Records":
        """Return the records that an index or a mask picks."""
        tokens = None if self.tokens is None else self.tokens[chosen]
        return Records(self.features[chosen], self.labels[chosen], tokens)


@runtime_checkable
class Prompts(Protocol):
    """A frozen text tower, bound to class names.

    Attributes:
        context_tokens: Learned vectors in front of a class name.
        width: Of one such vector.
    """

    @property
    def context_tokens(self) -> int:
        """How many."""
        ...

    @property
    def width(self) -> int:
        """How wide."""
        ...

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return the normalised text features of every class, differentiable."""
        ...


@dataclass(frozen=True)
class PublicTask:
    """What every party, and so every adversary, knows.

    Attributes:
        prompts: The frozen text tower, bound to the class names.
        logit_scale: What cosines are multiplied by, exponentiated.
        zero_shot: Text features of the hand-written prompt.
        public: Records that belong to nobody, from the same distribution.
        candidates: How many candidates each client has; which of them are members is
            not known.
        rounds: How many rounds are trained.
        member_share: Part of the candidates that is trained on, expected: half by the
            coin, 1 where nobody is to be audited.
    """

    prompts: Prompts
    logit_scale: float
    zero_shot: Float[Tensor, "classes dim"]
    public: Records
    candidates: Mapping[ClientId, int]
    rounds: int
    member_share: float = 0.5

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients in their fixed order."""
        return tuple(self.candidates)

    @property
    def expected_members(self) -> float:
        """Members a client has on average: by the coin, half its candidates."""
        candidates = sum(self.candidates.values()) / len(self.candidates)
        return candidates * self.member_share


@dataclass(frozen=True)
class Cohort:
    """Several clients trained together; ragged sizes are padded and masked.

    Attributes:
        clients: Their names, which also name their random streams.
        features: Image features; padding is zero.
        labels: Class indices; padding is zero.
        mask: True where a record is.
        tokens: Parts of pictures, where the records have them; padding is zero.
    """

    clients: tuple[ClientId, ...]
    features: Float[Tensor, "clients records dim"]
    labels: Int[Tensor, "clients records"]
    mask: Bool[Tensor, "clients records"]
    tokens: Float[Tensor, "clients records parts dim"] | None = None

    @classmethod
    def of(cls, clients: Sequence[ClientId], shards: Sequence[Records]) -> "Cohort":
        """Stack one shard for each client, in that order."""
        longest = max(1, *(len(shard) for shard in shards), 1)
        sizes = torch.tensor([len(shard) for shard in shards])
        parts = [shard.tokens for shard in shards if shard.tokens is not None]
        return cls(
            tuple(clients),
            _pad([shard.features for shard in shards], longest),
            _pad([shard.labels for shard in shards], longest),
            torch.arange(longest) < sizes[:, None],
            _pad(parts, longest) if parts else None,
        )

    @property
    def sizes(self) -> Int[Tensor, " clients"]:
        """How many records each client trains on."""
        return self.mask.sum(dim=1)

    def __len__(self) -> int:
        return len(self.clients)


def _pad(parts: Sequence[Tensor], longest: int) -> Tensor:
    padded = parts[0].new_zeros(len(parts), longest, *parts[0].shape[1:])
    for row, part in enumerate(parts):
        padded[row, : len(part)] = part
    return padded


@dataclass(frozen=True)
class Round:
    """One round, as every party knows it.

    Attributes:
        index: Counted from 0.
        seeds: The run's; a draw names the round and the client.
        participants: Who takes part, in the fixed order of clients. In ``local_update``
            only their number counts: shadow federations share one round.
    """

    index: int
    seeds: Seeds
    participants: tuple[ClientId, ...]

    def generator(self, purpose: str, client: ClientId = "") -> torch.Generator:
        """Return this round's stream for one purpose and client."""
        return self.seeds.generator(purpose, round=self.index, client=client)


@dataclass(frozen=True)
class LocalResult:
    """What a cohort did in one round.

    Attributes:
        sent: To the server, stacked over clients; empty if nothing is sent.
        kept: Private state for the next round, stacked over clients.
        loss: Mean training loss of each client.
        events: The privacy mechanisms as the clients applied them.
    """

    sent: Stacked
    kept: Stacked
    loss: Float[Tensor, " clients"]
    events: Events = ()


@dataclass(frozen=True)
class Rebuilt:
    """The best model of a client that a view allows.

    Attributes:
        model: What ``query`` takes.
        missing: What of the client's model the view does not show, in words.
        staleness: Rounds between what was seen and the client's last state.
        estimated: Whether a private part was inferred, not simply read off.
        suspects: Where the view holds models without their owners' names: those of
            which one may be the client's. ``model`` then is what is best without them.
        shared: The part of the model that all clients have, if it is not the last
            broadcast: a server knows the noise that it added.
    """

    model: Tensors
    missing: tuple[str, ...] = ()
    staleness: int = 0
    estimated: bool = False
    suspects: tuple[Tensors, ...] = ()
    shared: Tensors | None = None


@dataclass(frozen=True)
class Claim:
    """The epsilon a method claims by its own formula, not what is proved.

    Attributes:
        epsilon: None where the method claims nothing.
        delta: Of the claim.
        source: Whose formula it is, in words.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    source: str = "no privacy mechanism"


@runtime_checkable
class Trainer(Protocol):
    """Anything that can be trained federatedly.

    Attributes:
        aggregation: "sum" if the server needs only the sum of what clients send, so
            that a secure sum could hide each of them; "individual" if not.
        usual_rounds: Trained if nobody says how many.
        image_tokens: Whether it needs the parts of pictures, not their whole only. Its
            parameters may decide: ask an instance.
        rebuilds_from_all: Whether ``rebuild`` adds up all that a client sent, not its
            last upload only: its shadows then need all rounds too.
    """

    aggregation: ClassVar[Literal["sum", "individual"]]
    usual_rounds: ClassVar[int]
    rebuilds_from_all: ClassVar[bool]

    @property
    def image_tokens(self) -> bool:
        """Whether it needs the parts of pictures, not their whole only."""
        ...

    def start(self, task: PublicTask, seeds: Seeds) -> Tensors:
        """Return the server's state before the first round."""
        ...

    def start_client(self, task: PublicTask, client: ClientId, seeds: Seeds) -> Tensors:
        """Return one client's private state before the first round."""
        ...

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Return what the server sends to ``client``."""
        ...

    def local_update(
        self,
        task: PublicTask,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Train a cohort for one round."""
        ...

    def aggregate(
        self,
        task: PublicTask,
        server: Tensors,
        inbox: Inbox,
        at: Round,
    ) -> tuple[Tensors, Events]:
        """Return the server's next state from the sum, or from each upload."""
        ...

    def release(
        self,
        task: PublicTask,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Return the personal models, from the last broadcast and the kept state."""
        ...

    def rebuild(self, task: PublicTask, view: View, client: ClientId) -> Rebuilt:
        """Return the best model of ``client`` that the view allows."""
        ...

    def query(
        self,
        task: PublicTask,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        """Yield signals [models, chunk of records, ...], in the order of records."""
        ...

    def claim(self, task: PublicTask) -> Claim:
        """Return the epsilon that the method claims by its own formula."""
        ...


MODELS_AT_ONCE = 128

TRAINERS: Registry[Callable[..., Trainer]] = Registry("trainer", "privaudit.trainers")


def ask(
    trainer: Trainer, task: PublicTask, models: Stacked, records: Records
) -> Float[Tensor, "models records classes"]:
    """Return every model's log-probabilities for every record."""
    chunks = [
        signals["log_probabilities"] for signals in trainer.query(task, models, records)
    ]
    return torch.cat(chunks, dim=1)


def label_log_probabilities(
    trainer: Trainer, task: PublicTask, models: Sequence[Tensors], records: Records
) -> Float[Tensor, "models records"]:
    """Return every model's log-probability of every record's label."""
    answers = ask_each(trainer, task, models, records)
    labels = records.labels.expand(len(models), -1).unsqueeze(2)
    return answers.gather(2, labels).squeeze(2)


def ask_each(
    trainer: Trainer, task: PublicTask, models: Sequence[Tensors], records: Records
) -> Float[Tensor, "models records classes"]:
    """Return the same for models of any shapes: those alike are asked together.

    So many at a time that memory does not grow with their number.
    """
    answers: dict[int, Tensor] = {}
    for positions in alike(models):
        for first in range(0, len(positions), MODELS_AT_ONCE):
            chunk = positions[first : first + MODELS_AT_ONCE]
            some = ask(trainer, task, stack([models[i] for i in chunk]), records)
            answers.update(zip(chunk, some, strict=True))
    return torch.stack([answers[i] for i in range(len(models))])
