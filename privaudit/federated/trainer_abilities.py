"""Abilities of some trainers beside training: small protocols, each for one use.

:class:`~privaudit.federated.base_trainer.BaseTrainer` has the first three.
"""

from collections.abc import Mapping, Sequence, Sized
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import (
    ClientId,
    Reconstruction,
    Records,
    Round,
    Task,
    Trainer,
)
from privaudit.federated.transcripts.threat_models import View
from privaudit.privacy.claim import Claim


@runtime_checkable
class KeepsState(Trainer, Protocol):
    """A trainer whose clients may have private state before the first round."""

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return one client's private state before the first round."""
        ...


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
        ...


@runtime_checkable
class TakesSingleStep(Trainer, Protocol):
    """A trainer whose update is compared with single records' (update-alignment)."""

    def single_step(self) -> Trainer:
        """Return the same method with one noiseless step on a whole shard a round.

        What a client with one record would send then points where its gradient does:
        along it by SGD, along its signs by AdamW.
        """
        ...


@runtime_checkable
class ShowsChoices(Trainer, Protocol):
    """A trainer whose uploads show random choices, which shadows must repeat.

    Attributes:
        starts_from_broadcast: Whether what a client keeps begins as the first broadcast.
    """

    starts_from_broadcast: ClassVar[bool]

    def with_choices_of(self, sent: Tensors) -> Trainer:
        """Return the same method with those random choices that an upload shows."""
        ...


@runtime_checkable
class RemembersSteps(Trainer, Protocol):
    """A trainer whose clients may go on with their optimiser of the round before."""

    @property
    def optimizer_state(self) -> str:
        """Say "kept" if what an optimiser remembers outlives a round."""
        ...


@runtime_checkable
class MeasuresItself(Trainer, Protocol):
    """A trainer that has a measure of utility of its own."""

    def measure(
        self, models: Sequence[Tensors], records: Records
    ) -> Float[np.ndarray, "models records"] | None:
        """Return a score from 0 to 1 of each model on each record; None without one."""
        ...


@runtime_checkable
class AddsNoise(Trainer, Protocol):
    """A trainer that may hide something with noise."""

    @property
    def is_noised(self) -> bool:
        """Whether it does: then a run draws a secret key of its own."""
        ...


@runtime_checkable
class ClaimsPrivacy(Trainer, Protocol):
    """A trainer that claims an epsilon."""

    def claim(self, task: Task) -> Claim:
        """Return the epsilon that the method claims by its own formula."""
        ...


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
        ...


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
