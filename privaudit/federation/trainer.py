"""The trainer protocol, its base of federated averaging, and the names of all trainers.

A trainer says what a client trains, sends and keeps, and how the server combines it.
It never sends anything: :mod:`privaudit.federation.rounds` does, and so records all that is
sent. Its functions are pure, which is what lets a run be resumed, a cohort be stacked
and an adversary replay a client with other records in its place.

What only some attacks and commands need stands in small protocols behind it, and
:class:`BaseTrainer` has defaults.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import pydantic.dataclasses
from jaxtyping import Bool, Float

from privaudit.core.devices import moved
from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.registry import Registry
from privaudit.core.seeds import Seeds, Stream
from privaudit.core.tensors import Stacked, Tensors, unstack
from privaudit.datasets.records import ClientId as ClientId
from privaudit.datasets.records import Cohort as Cohort
from privaudit.datasets.records import Records as Records
from privaudit.federation.threat_models import View
from privaudit.federation.uploads import UNTRAINED, apply_mean, last_sent
from privaudit.models.interfaces import (
    AnyTask,
    Classifier,
    LanguageModel,
    OwnersModel,
    Prompts,
    TaskKind,
    Tunable,
)
from privaudit.privacy.events import Claim, MechanismEvent, Trace

Signal = str  # "log_probabilities" of classes, or a name of models.token_table
Signals = Mapping[Signal, Tensor]
Want = frozenset[Signal]
ANSWERS: Want = frozenset({"log_probabilities"})
"""What is asked for where nothing else is said."""
Events = tuple[MechanismEvent, ...]
Inbox = Mapping[str, Any]  # the sum: tensors by name; individual: tensors by client


@dataclass(frozen=True)
class Task:
    """What every party, and so every adversary, knows.

    Attributes:
        backbone: The frozen model: one that classifies, one that writes, or one that only
            its owner can ask.
        public: Records that belong to nobody, from the same distribution.
        candidates: How many candidates each client has; which of them are members is
            not known.
        rounds: How many rounds are trained.
        member_share: Part of the candidates that is trained on, expected: half by the
            coin, 1 where nobody is to be audited.
    """

    backbone: Classifier | LanguageModel | OwnersModel
    public: Records
    candidates: Mapping[ClientId, int]
    rounds: int
    member_share: float = 0.5

    @property
    def prompts(self) -> Prompts:
        """The text tower of a classifier, bound to the class names."""
        return self.classifier.prompts

    @property
    def logit_scale(self) -> float:
        """What a classifier multiplies cosines by."""
        return self.classifier.logit_scale

    @property
    def zero_shot(self) -> Float[Tensor, "classes dim"]:
        """Text features of a classifier's hand-written prompt."""
        return self.classifier.zero_shot

    @property
    def language(self) -> LanguageModel:
        """The language model of a model that writes."""
        if isinstance(self.backbone, Classifier):
            raise ConfigError(
                "A language model was requested, but this task's model classifies. "
                "Use a generative model, such as tiny-llava."
            )
        if isinstance(self.backbone, OwnersModel):
            raise _owners("language model")
        return self.backbone

    @property
    def tunable(self) -> Tunable:
        """The frozen transformer itself, whichever way the task's model answers."""
        if isinstance(self.backbone, Classifier):
            return self.backbone.tower
        return self.language

    @property
    def kind(self) -> TaskKind:
        """What its models are for."""
        return self.backbone.task

    @property
    def classifier(self) -> Classifier:
        """The frozen CLIP of a model that classifies."""
        if isinstance(self.backbone, OwnersModel):
            raise _owners("classifier")
        if not isinstance(self.backbone, Classifier):
            raise ConfigError(
                "A classifier was requested, but this task's model generates text. "
                "Use a classifier, such as tiny-clip."
            )
        return self.backbone

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients in their fixed order."""
        return tuple(self.candidates)

    @property
    def expected_members(self) -> float:
        """Members a client has on average: by the coin, half its candidates."""
        candidates = sum(self.candidates.values()) / len(self.candidates)
        return candidates * self.member_share


def _owners(what: str) -> ConfigError:
    return ConfigError(
        f"A {what} was requested, but this federation's model is its owner's. Use a run "
        "that `privaudit train` made."
    )


@dataclass(frozen=True)
class Round:
    """One round, as every party knows it.

    Attributes:
        index: Counted from 0.
        seeds: The run's; a draw names the round and the client.
        participants: Who takes part, in the fixed order of clients. In ``local_update``
            only their number counts: shadow federations share one round.
        trace: Takes notes for the run's owner, in ``local_update``; None takes none.
        secrets: Of the run's secret key; None takes the seeds, as a simulation does
            whose seed gives everything away.
        step: Between the numbers that masked sums of uploads can hold, a power of two;
            0 where nothing is masked. Noise that adds up lies on multiples of it.
        steps: Local steps at most; None takes all. One, where its memory is measured.
        slots: In ``local_update``, what optimisers remember of earlier rounds, stacked
            over clients; what is put in is kept with each client's private state.
    """

    index: int
    seeds: Seeds
    participants: tuple[ClientId, ...]
    trace: Trace | None = field(default=None, compare=False, repr=False)
    secrets: Seeds | None = field(default=None, repr=False)
    step: float = 0.0
    steps: int | None = None
    slots: dict[str, Tensor] | None = field(default=None, compare=False, repr=False)

    def stream(self, purpose: str, client: ClientId = "") -> Stream:
        """Return this round's stream of the seed: of what no certificate rests on."""
        return self.seeds.stream(purpose, round=self.index, client=client)

    def secret(self, purpose: str, client: ClientId = "") -> Stream:
        """Return this round's stream of the secret key: of noise, and secret samples.

        Whatever a certificate takes for unknown to the adversary is drawn from it.
        """
        secrets = self.secrets or self.seeds
        return secrets.stream(purpose, round=self.index, client=client)

    def part(self, purpose: str, index: int = 0) -> "Round":
        """Return the round for a part of its work, such as one step, with own draws."""
        secrets = self.secrets and self.secrets.child(purpose, index)
        return replace(self, seeds=self.seeds.child(purpose, index), secrets=secrets)


@dataclass(frozen=True)
class LocalResult:
    """What a cohort did in one round.

    Attributes:
        sent: To the server, stacked over clients; empty if nothing is sent.
        kept: Private state for the next round, stacked over clients.
        loss: Mean training loss of each client.
        events: The privacy mechanisms as the clients applied them.
        sends: Which clients send a tensor; one that is not named is sent by all.
    """

    sent: Stacked
    kept: Stacked
    loss: Float[Tensor, " clients"]
    events: Events = ()
    sends: Mapping[str, Bool[Tensor, " clients"]] = field(default_factory=dict)

    def to(self, device: torch.device) -> "LocalResult":
        """Return the same on a device."""
        return LocalResult(**{n: moved(one, device) for n, one in vars(self).items()})

    def uploads(self) -> list[dict[str, Tensor]]:
        """Return what each client sends, without what it keeps to itself."""
        uploads = unstack(self.sent, len(self.loss))
        for name, chosen in self.sends.items():
            for position in (~chosen).nonzero().flatten().tolist():
                del uploads[position][name]
        return uploads


@dataclass(frozen=True)
class Reconstruction:
    """The best model of a client that a view allows.

    Attributes:
        model: Tensors by name, of one model, as ``query`` takes them stacked.
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


@runtime_checkable
class Trainer(Protocol):
    """Anything that can be trained federatedly.

    :class:`BaseTrainer` has defaults for all but
    ``start``, ``local_update`` and ``query``: one that classifies by distance from the
    mean feature of each class needs no more. What only some attacks and commands need
    stands in small
    protocols below.

    Example:
        >>> import torch
        >>> from privaudit.federation.trainer import BaseTrainer
        >>> from privaudit.federation.uploads import weighted_upload
        >>> class ClassMeans(BaseTrainer):
        ...     def start(self, task, seeds):
        ...         return {"means": torch.zeros_like(task.zero_shot)}  # [classes, dim]
        ...
        ...     def local_update(self, task, cohort, received, kept, at):
        ...         hot = torch.eye(len(task.zero_shot))[cohort.labels]
        ...         hot *= cohort.mask[..., None]  # records of small shards are padded
        ...         sums = torch.einsum("kbc,kbd->kcd", hot, cohort.features)
        ...         sent = {"means": sums / hot.sum(dim=1)[..., None].clamp(min=1)}
        ...         loss = torch.zeros(len(cohort))
        ...         return LocalResult(weighted_upload(cohort, sent), {}, loss)
        ...
        ...     def query(self, task, models, records, want=frozenset()):
        ...         means = models["means"]
        ...         near = torch.einsum("nd,kcd->knc", records.features, means)
        ...         yield {"log_probabilities": (10 * near).log_softmax(dim=-1)}
        >>> from privaudit.federation.rounds import Federation, run_round
        >>> from privaudit.runs.config import make_config
        >>> from privaudit.runs.population import populate
        >>> task = populate(make_config("zero-shot")).task
        >>> shards = {"ann": task.public.pick(torch.arange(100))}
        >>> federation = Federation.begin(ClassMeans(), task, shards, Seeds(0))
        >>> record = run_round(ClassMeans(), task, [federation], 0)
        >>> models = {"means": federation.server["means"].unsqueeze(0)}
        >>> (said,) = ClassMeans().query(task, models, task.public)
        >>> right = said["log_probabilities"][0].argmax(dim=-1) == task.public.labels
        >>> round(right.float().mean().item(), 1)
        0.9

    Attributes:
        aggregation: "sum" if the server needs only the sum of what clients send, so
            that a secure sum could hide each of them; "individual" if not.
        task: What its models are for: "classification" or "generation"; "either"
            follows the model.
        usual_rounds: Trained if nobody says how many.
        image_tokens: Whether it needs the parts of pictures, not their whole only. Its
            parameters may decide: ask an instance.
    """

    aggregation: ClassVar[Literal["sum", "individual"]]
    task: ClassVar[AnyTask]
    usual_rounds: ClassVar[int]

    @property
    def image_tokens(self) -> bool:
        """Whether it needs the parts of pictures, not their whole only."""

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return the server's state before the first round."""

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Return what the server sends to ``client``."""

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train a cohort for one round."""

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the server's next state from the sum, or from each upload."""

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Return the personal models, from the last broadcast and the kept state."""

    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield signals [models, chunk of records, ...], in the order of records."""


TRAINERS: Registry[Callable[..., Trainer]] = Registry("trainer", "privaudit.trainers")


@runtime_checkable
class KeepsState(Trainer, Protocol):
    """A trainer whose clients may have private state before the first round."""

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return one client's private state before the first round."""


@runtime_checkable
class Reconstructs(Trainer, Protocol):
    """A trainer that says what each view shows of a client: every attack needs it.

    Attributes:
        reconstructs_from_all_rounds: Whether ``reconstruct`` adds up all that a client
            sent, not its last upload only: its shadows then need all rounds too.
    """

    reconstructs_from_all_rounds: ClassVar[bool]

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the best model of ``client`` that the view allows."""


@runtime_checkable
class TakesSingleStep(Trainer, Protocol):
    """A trainer whose update is compared with single records' (update-alignment)."""

    def single_step(self) -> Trainer:
        """Return the same method with one noiseless step on a whole shard a round.

        What a client with one record would send then points where its gradient does:
        along it by SGD, along its signs by AdamW.
        """


@runtime_checkable
class DeclaresBase(Trainer, Protocol):
    """A trainer that starts from what was sent, which only who saw it knows."""

    @property
    def public_base(self) -> Tensors:
        """What everybody knows of the model that it starts from."""


@runtime_checkable
class ShowsChoices(Trainer, Protocol):
    """A trainer whose uploads show random choices, which shadows must repeat.

    Attributes:
        starts_from_broadcast: Whether what a client keeps begins as the first broadcast.
    """

    starts_from_broadcast: ClassVar[bool]

    def with_choices_of(self, sent: Tensors) -> Trainer:
        """Return the same method with those random choices that an upload shows."""


@runtime_checkable
class RemembersSteps(Trainer, Protocol):
    """A trainer whose clients may go on with their optimiser of the round before."""

    @property
    def optimizer_state(self) -> str:
        """Say "kept" if what an optimiser remembers outlives a round."""


@runtime_checkable
class MeasuresItself(Trainer, Protocol):
    """A trainer that has a measure of utility of its own."""

    def measure(
        self, models: Sequence[Tensors], records: Records
    ) -> Float[np.ndarray, "models records"] | None:
        """Return a score from 0 to 1 of each model on each record; None without one."""


@runtime_checkable
class ClaimsPrivacy(Trainer, Protocol):
    """A trainer that claims an epsilon."""

    def claim(self, task: Task) -> Claim:
        """Return the epsilon that the method claims by its own formula."""


@runtime_checkable
class LearnsPrompt(Trainer, Protocol):
    """A trainer of prompts of CLIP.

    Attributes:
        prompt: The tensor that is one [tokens, width], wherever it is sent or released.
    """

    prompt: ClassVar[str]


@runtime_checkable
class AcceptsGradientCanaries(LearnsPrompt, Protocol):
    """A trainer that trains on canaries in gradient space: crafted for its prompt."""

    accepts_gradient_canaries: ClassVar[Literal[True]]


@runtime_checkable
class CountsQueries(Protocol):
    """A trainer whose clients pay for every answer."""

    def model_queries(self, records: int) -> int:
        """Return how many a client with so many records makes in a round.

        One query is one record, answered by one model.
        """


def start_client(
    trainer: Trainer, task: Task, client: ClientId, seeds: Seeds
) -> Tensors:
    """Return a client's private state before the first round; mostly there is none."""
    (state,) = start_clients(trainer, task, [client], seeds)
    return state


def start_clients(
    trainer: Trainer, task: Task, clients: Sequence[ClientId], seeds: Seeds
) -> list[Tensors]:
    """Return the same of several clients."""
    if not isinstance(trainer, KeepsState):  # takes its time: not asked for each
        return [{} for _ in clients]
    return [trainer.start_client(task, client, seeds) for client in clients]


def remembers_steps(trainer: Trainer) -> bool:
    """Say whether clients remember more of a round than the trainer has them keep."""
    return isinstance(trainer, RemembersSteps) and trainer.optimizer_state == "kept"


def claim_of(trainer: Trainer, task: Task) -> Claim:
    """Return the epsilon that a trainer claims; mostly none."""
    return trainer.claim(task) if isinstance(trainer, ClaimsPrivacy) else Claim()


def queries_of(
    trainer: Trainer, shards: Mapping[ClientId, Sized], at: Round
) -> int | None:
    """Return the queries of all participants of a round; None if nobody counts."""
    if not isinstance(trainer, CountsQueries):
        return None
    return sum(trainer.model_queries(len(shards[c])) for c in at.participants)


@pydantic.dataclasses.dataclass(frozen=True)
class BaseTrainer:
    """Every default of a trainer: ``local_update`` and ``query`` are left.

    The server starts without a state, broadcasts all of it to everyone, and averages
    uploads weighted by shard sizes; nothing is kept before the first round, and no
    privacy is claimed. The toy in
    :class:`Trainer` shows a trainer on top of it.
    """

    aggregation: ClassVar[Literal["sum", "individual"]] = "sum"
    task: ClassVar[AnyTask] = "classification"
    usual_rounds: ClassVar[int] = 10
    image_tokens: ClassVar[bool] = False
    reconstructs_from_all_rounds: ClassVar[bool] = False

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return no state: the server has no part in it."""
        return {}

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return no state: nothing is kept before the first round."""
        return {}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the server's state to everyone."""
        return dict(server)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the means weighted by shard sizes; nobody's records change nothing."""
        return apply_mean(server, inbox), ()

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release what a client last trained and kept, else the server's average."""
        return {**received, **kept}

    def own_model(self, server: Tensors) -> Tensors:
        """Return the server's own model from its state: the averages."""
        return server

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the released model where the view has it, else :meth:`rebuild` one."""
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
        return self.rebuild(task, view, client)

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's last upload where it is seen, else the average."""
        sent = last_sent(view, client)
        if sent is not None:
            return Reconstruction(sent)
        return Reconstruction(view.last_broadcast(client).tensors, (UNTRAINED,))

    def single_step(self) -> Any:
        """Return the same trainer with one step on the whole shard."""
        return self.with_settings(epochs=1, batch_size=0)

    def with_settings(self, **settings: Any) -> Any:
        """Return the same trainer with those settings changed that it has."""
        names = {field.name for field in fields(self)}
        return replace(self, **{n: v for n, v in settings.items() if n in names})
