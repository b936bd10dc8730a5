"""FedPer on adapters: the upper layers are shared, the lower ones are each client's."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, below
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
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.transformers.lora import LoraTrainer, chosen, layer_of

FIRST, JOINED = "first ", "joined "


@TRAINERS.register("lora-fedper")
@dataclass(frozen=True)
class LoraFedPer(LoraTrainer):
    """LoRA with FedPer: adapters of the upper layers are averaged, the others stay local.

    The first round is FedAvg's: everything is sent and averaged. From then on a client
    begins its private part, when it next takes part, from what that round gave; the
    server sends it along that once.

    Source: Arivazhagan et al., "Federated learning with personalization layers", 2019,
    on adapters as in FedRand, section 4.1 and appendix A.3. There the top layers are
    the shared ones, which is the other way round than in the first paper.

    Attributes:
        shared_layers: How many of the top layers are shared; 2 and 4 are published.
    """

    reconstructs_from_all_rounds: ClassVar[bool] = True

    shared_layers: Annotated[int, Field(ge=1)] = 2

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return all pairs, and that nobody has joined.

        Raises:
            ConfigError: No layer would be left private.
        """
        layers = _layers(task)
        if self.shared_layers >= layers:
            raise ConfigError(
                f"{self.shared_layers} shared layers were requested, but the language "
                f"model has {layers}: none would be private. Use at most "
                f"{layers - 1}, or lora-fedavg."
            )
        pairs = super().start(task, seeds)
        state = {
            FIRST + name if self._is_private(task, name) else name: tensor
            for name, tensor in pairs.items()
        }
        joined = {JOINED + client: torch.zeros(()) for client in task.clients}
        return {**state, **joined}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the shared part; to a newcomer, where the private one begins too."""
        shared = chosen(server, lambda name: not name.startswith((FIRST, JOINED)))
        if server[JOINED + client]:
            return shared
        return {**shared, **below(FIRST, server)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train all; send all in the first round, and the shared part from then on."""
        trained, loss = self.train(task, cohort, {**received, **kept}, at)
        if at.index == 0:
            return LocalResult(weighted_upload(cohort, trained), {}, loss)
        private = chosen(trained, lambda name: self._is_private(task, name))
        shared = chosen(trained, lambda name: name not in private)
        return LocalResult(weighted_upload(cohort, shared), private, loss)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Average what was sent, and note who has begun its private part."""
        renamed = {FIRST + n if FIRST + n in server else n: t for n, t in inbox.items()}
        averaged, events = super().aggregate(task, server, renamed, at)
        begun = at.participants if at.index else ()
        joined = {JOINED + client: torch.ones(()) for client in begun}
        return {**averaged, **joined}, events

    def own_model(self, server: Tensors) -> Tensors:
        """Return the shared part on the private part's common start."""
        adapters = chosen(server, lambda name: not name.startswith(JOINED))
        return {n.removeprefix(FIRST): t for n, t in adapters.items()}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the shared part as last sent, on the private part's common start."""
        reconstructed = super().rebuild(task, view, client)
        newest = view.once("newest tensors", lambda: _newest(view))
        model = {**newest, **reconstructed.model}
        missing = (*reconstructed.missing, "the private layers' training")
        return Reconstruction(model, missing, estimated=True)

    def _is_private(self, task: Task, name: str) -> bool:
        depth = layer_of(task.language.targets, name)
        return depth < _layers(task) - self.shared_layers


def _layers(task: Task) -> int:
    return 1 + max(target.layer for target in task.language.targets.values())


def _newest(view: View) -> dict[str, Tensor]:
    """Return each tensor as the server last sent it to anybody."""
    newest: dict[str, Tensors] = {}
    for message in view.of_kind("broadcast"):
        newest.update(dict.fromkeys(message.tensors, message.tensors))
    return {name: tensors[name] for name, tensors in newest.items()}
