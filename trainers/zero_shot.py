"""The model as it comes, and no training. The lower bound."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.query import UNTUNED
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    ANSWERS,
    TRAINERS,
    ClientId,
    Cohort,
    LocalResult,
    Reconstruction,
    Records,
    Round,
    Signals,
    Task,
    Want,
)
from privaudit.models.interfaces import AnyTask, Tuning
from privaudit.privacy.events import Claim
from privaudit.tuning.prompts.learning import PromptTrainer
from privaudit.tuning.transformers.lora import weight_changes
from privaudit.tuning.transformers.objectives import objective_of


@TRAINERS.register("zero-shot")
@dataclass(frozen=True)
class ZeroShot(PromptTrainer):
    """No training: zero-shot classification, or generation with the untuned model.

    Nothing is trained or sent, so nothing can leak: what an attack finds is chance. A
    server has no state, and nothing to combine: ``BaseTrainer.start`` and
    ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: Radford et al., "Learning transferable visual models from natural language
    supervision", ICML 2021, section 3.1.
    """

    task: ClassVar[AnyTask] = "either"
    prompt: ClassVar[str] = ""  # none is trained, sent or released

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Do nothing."""
        return LocalResult({}, {}, torch.zeros(len(cohort)))

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the public model, which holds nothing of anybody."""
        model = self._model(task)
        return {n: t.expand(len(clients), *t.shape) for n, t in model.items()}

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the public model: it is exactly what the client uses."""
        return Reconstruction(self._model(task))

    def own_model(self, server: Tensors) -> Tensors:
        """Return the model as it comes."""
        return {UNTUNED: torch.zeros(())}

    def tuning(self, task: Task, models: Stacked) -> Tuning:
        """Return nothing: no layer is changed."""
        return Tuning()

    def weight_changes(self, task: Task, model: Tensors) -> Iterable[Tensor]:
        """Yield zeros for each layer."""
        return weight_changes(task.language.targets, {}, 0.0)

    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield log-probabilities of classes, or statistics of tokens."""
        if UNTUNED not in models:
            return super().query(task, models, records, want)
        return objective_of(task).query(Tuning(), len(models[UNTUNED]), records, want)

    def claim(self, task: Task) -> Claim:
        """Claim 0: the model does not depend on any record."""
        return Claim(0.0, source="no record is used")

    def _model(self, task: Task) -> Tensors:
        if task.kind == "generation":
            return {UNTUNED: torch.zeros(())}
        return {"text": task.zero_shot}
