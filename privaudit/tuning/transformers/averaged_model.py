"""What trainers share whose server keeps one model, and averages what it is sent."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.trainer import ClientId, Events, Inbox, Round, Task
from privaudit.federated.weighted_mean import apply_mean
from privaudit.privacy.certificate import Claim


def with_settings(trainer: Any, **settings: Any) -> Any:
    """Return the same trainer with those settings changed that it has."""
    own = {field.name for field in fields(trainer)}
    return replace(trainer, **{n: v for n, v in settings.items() if n in own})


class AveragedModel:
    """One model at the server, means weighted by shard sizes, no promise of privacy."""

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return no state: nothing is kept before the first round."""
        return {}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the averages to everyone."""
        return dict(server)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the means weighted by shard sizes; nobody's records change nothing."""
        return apply_mean(server, inbox), ()

    def release(
        self,
        task: Task,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Release what a client last trained and kept, else the server's average."""
        return {**received, **kept}

    def own_model(self, server: Tensors) -> Tensors:
        """Return the server's own model from its state: the averages."""
        return server

    def single_step(self) -> Any:
        """Return the same trainer with one step on the whole shard."""
        return with_settings(self, epochs=1, batch_size=0)

    def with_choices_of(self, sent: Tensors) -> Any:
        """Return the trainer: an upload shows no choice."""
        return self

    @property
    def is_noised(self) -> bool:
        """No noise is added."""
        return False

    def claim(self, task: Task) -> Claim:
        """Claim nothing: there is no privacy mechanism."""
        return Claim()
