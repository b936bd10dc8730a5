"""The base of trainers: federated averaging, unless a trainer says otherwise."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal

import pydantic.dataclasses

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.trainer import (
    ClientId,
    Events,
    Inbox,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federated.transcripts.threat_models import View
from privaudit.federated.weighted_mean import UNTRAINED, apply_mean, last_sent
from privaudit.models.interfaces import AnyTask


@pydantic.dataclasses.dataclass(frozen=True)
class BaseTrainer:
    """Every default of a trainer: ``local_update`` and ``query`` are left.

    The server starts without a state, broadcasts all of it to everyone, and averages
    uploads weighted by shard sizes; nothing is kept before the first round, and no
    privacy is claimed. The toy in
    :class:`~privaudit.federated.trainer.Trainer` shows a trainer on top of it.
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
        """Return the client's last upload where it is seen, else the average."""
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
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
