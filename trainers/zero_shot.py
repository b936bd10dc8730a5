"""Zero-shot CLIP: the hand-written prompt, and no training. The lower bound."""

from collections.abc import Sequence

import torch
from pydantic.dataclasses import dataclass

from privaudit.prompts.learning import PromptTrainer
from privaudit.tensors import Stacked
from privaudit.threats import View
from privaudit.trainer import (
    TRAINERS,
    Claim,
    ClientId,
    Cohort,
    LocalResult,
    PublicTask,
    Rebuilt,
    Round,
)


@TRAINERS.register("zero-shot")
@dataclass(frozen=True)
class ZeroShot(PromptTrainer):
    """Classify with the text features of "a photo of a {name}.".

    Nothing is trained or sent, so nothing can leak: what an attack finds is chance.

    Source: Radford et al., "Learning transferable visual models from natural language
    supervision", ICML 2021, section 3.1.
    """

    def local_update(
        self,
        task: PublicTask,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        """Do nothing."""
        return LocalResult({}, {}, torch.zeros(len(cohort)))

    def release(
        self,
        task: PublicTask,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
    ) -> Stacked:
        """Release the public model, which holds nothing of anybody."""
        return {"text": task.zero_shot.expand(len(clients), -1, -1)}

    def rebuild(self, task: PublicTask, view: View, client: ClientId) -> Rebuilt:
        """Return the public model: it is exactly what the client uses."""
        return Rebuilt({"text": task.zero_shot})

    def claim(self, task: PublicTask) -> Claim:
        """Claim 0: the model does not depend on any record."""
        return Claim(0.0, source="no record is used")
