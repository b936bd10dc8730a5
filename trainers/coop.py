"""CoOp: every client learns its own prompt, without federation."""

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.tuning.prompts.learning import LocalSgd, start_context


@TRAINERS.register("coop")
@dataclass(frozen=True)
class CoOp(LocalSgd):
    """Local prompt learning (CoOp): each client trains a prompt and sends nothing.

    A server learns nothing about the records; whoever is given the prompt may. It has
    no state, and nothing to combine: ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: Zhou et al., "Learning to prompt for vision-language models", IJCV 2022,
    equation 2, with the class token at the end and one context for all classes.
    """

    accepts_gradient_canaries: ClassVar[Literal[True]] = True

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return no state: the server has no part in it."""
        return {}

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a random context of the client's own."""
        return {"context": start_context(task, seeds, client)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the client's own context further."""
        contexts, loss = self.train(task, cohort, kept["context"], at)
        return LocalResult({}, {"context": contexts}, loss)

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the public model: nothing was sent."""
        return Reconstruction(
            {"text": task.zero_shot}, missing=("the client's prompt",)
        )
