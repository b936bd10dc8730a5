"""The attack interface, and the names of all attacks.

An attack is a function of what an adversary has: a rebuilt model for each attacked
client, the algorithm, public data, and a view. Truth about membership is nowhere in
reach. Its parameters are the fields of a frozen dataclass, so that ``repr(attack)`` is
a complete record of what was run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from privaudit.auditing.signal_cache import SignalStore
from privaudit.core.errors import AttackError
from privaudit.core.registry import Registry
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import ThreatModel, View
from privaudit.federation.trainer import (
    ClientId,
    Reconstruction,
    Reconstructs,
    Records,
    Task,
    Trainer,
)
from privaudit.models.interfaces import AnyTask as AnyTask  # for authors of attacks
from privaudit.statistics.progress import Event, Watcher

Found = TypeVar("Found")


@dataclass(frozen=True)
class Target:
    """One client under attack.

    Attributes:
        reconstructed: The adversary's best model of it.
        candidates: Records whose membership the adversary wants to know.
    """

    client: ClientId
    reconstructed: Reconstruction
    candidates: Records


@dataclass(frozen=True)
class Adversary:
    """What an adversary has besides its targets.

    Attributes:
        trainer: The algorithm and its parameters, which are public.
        task: What every party knows, public records among it.
        threat: What it would see of a federation of its own making.
        view: What it saw of the real one.
        seeds: Its own randomness, unrelated to the run's.
        participation: Share of clients in a round.
        store: Where signals of shadow models are kept between audits, if anywhere.
        batch_share: A record's chance to be in the one step that a client takes a round; 1
            where it takes more, or draws nothing.
        watcher: Receives how far its shadow models are.
    """

    trainer: Trainer
    task: Task
    threat: ThreatModel
    view: View
    seeds: Seeds
    participation: float = 1.0
    store: SignalStore | None = None
    batch_share: float = 1.0
    watcher: Watcher | None = field(default=None, repr=False, compare=False)

    @property
    def reconstructing(self) -> Reconstructs:
        """Its trainer, which says what a view shows of a client.

        Raises:
            AttackError: It does not say.
        """
        if isinstance(self.trainer, Reconstructs):
            return self.trainer
        raise AttackError(
            f"{type(self.trainer).__name__} was attacked, and it does not say what a "
            "view shows of a client. Give it `reconstruct`, or the base BaseTrainer."
        )

    def reconstruct(self, client: ClientId) -> Reconstruction:
        """Return the best model of a client that the view allows."""
        return self.reconstructing.reconstruct(self.task, self.view, client)

    @cached_property
    def shared(self) -> dict[object, object]:
        """What attacks of one adversary compute once, such as shadow models."""
        return {}

    def once(
        self, key: tuple[object, ...], compute: Callable[[], Found], *about: object
    ) -> Found:
        """Return what is shared under a key, computed on first use.

        Args:
            key: What it is, and by which settings; of one type of result.
            compute: Computes it.
            about: What it is about, known by identity, and kept: else another's id
                could become the same.
        """
        whole = (*key, *map(id, about))
        if whole not in self.shared:
            self.shared[whole] = compute(), about
        return cast("tuple[Found, object]", self.shared[whole])[0]

    def tell(self, event: Event) -> None:
        """Tell whoever watches, if anybody does."""
        if self.watcher is not None:
            self.watcher(event)


@dataclass(frozen=True)
class Scores:
    """What an attack says about the candidates of one client.

    Attributes:
        scores: Higher means more likely a member.
        guesses: The attack's verdict, by a threshold fixed without these candidates.
        by_round: The scores of single rounds, where the attack has them.
        left_out: What they would be without each of some sets of shadow models; None
            where none were trained, or the interval is not to know of their coins.
        expected: The AUROC that the attack expects, by the scores alone; 0 where it
            cannot tell.
    """

    scores: Float[np.ndarray, " candidates"]
    guesses: Bool[np.ndarray, " candidates"]
    by_round: Mapping[int, Float[np.ndarray, " candidates"]] = field(
        default_factory=dict
    )
    left_out: Float[np.ndarray, "sets candidates"] | None = None
    expected: float = 0.0


@runtime_checkable
class Attack(Protocol):
    """Anything that scores the candidates of several clients.

    Attributes:
        threshold: How its guesses are made, in words that follow from its parameters.
            Words go where a run's files never do: nothing of records may be in them.
        trains_shadows: Whether it trains models of its own, and so is expensive:
            scenarios then attack some clients only, unless options say otherwise.
        task: The models that it attacks: "classification", "generation" or "either".
    """

    @property
    def threshold(self) -> str: ...  # noqa: D102

    trains_shadows: ClassVar[bool]
    task: ClassVar[AnyTask]

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates; a pure function of its arguments."""


@runtime_checkable
class AppliesToSome(Attack, Protocol):
    """An attack that reads what not all models of its task have.

    Scenarios that make it of their own leave it out elsewhere; who asks for it there
    gets an error that says what is missing.
    """

    @staticmethod
    def applies_to(trainer: Trainer, task: Task | None) -> bool:
        """Return whether models of a trainer have what it reads, on any task if None."""


@runtime_checkable
class NeedsMore(Attack, Protocol):
    """An attack that may find a view without what it reads.

    Scenarios that make it of their own leave it out then, and say why; who asks for it
    gets that as an error.
    """

    def why_not(self, adversary: Adversary, targets: Sequence[Target]) -> str:
        """Return what is missing, as a sentence; empty where nothing is."""


@runtime_checkable
class ReadsUploads(Attack, Protocol):
    """An attack on what was sent: which model the adversary makes of it does not matter.

    It is made once, and not again on the server's own model.
    """

    reads_uploads: ClassVar[Literal[True]]


@runtime_checkable
class SaysScores(Attack, Protocol):
    """An attack whose scores mean something by themselves."""

    def said(self, score: float) -> str:
        """Return what one record's score says, in words."""


ATTACKS: Registry[Callable[..., Attack]] = Registry("attack", "privaudit.attacks")
