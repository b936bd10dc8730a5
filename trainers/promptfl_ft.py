"""PromptFL, fine-tuned: each client trains the shared prompt further for itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
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
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.prompts.learning import LocalSgd


@TRAINERS.register("promptfl-ft")
@dataclass(frozen=True)
class FineTunedPromptFL(LocalSgd):
    """PromptFL with local fine-tuning: the personal model is trained further.

    The first prompt is drawn by ``LocalSgd.start``, tuning/prompts/learning.py.

    In each round a client trains the prompt it received, sends it, and then trains the
    result for ``tuning_epochs`` more, from a standing start. What that gives is its
    personal model, kept and never sent. It so begins at the last prompt that the client
    received and trained, not at the average that comes after: a client that sits out
    keeps the personal model of its last round. The server takes the mean weighted by
    shard sizes: ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: the fine-tuned baseline of Li et al., "Global and local prompts cooperation
    via optimal transport for federated learning" (FedOTP), CVPR 2024, and others; there
    the average is fine-tuned after the last round. Training is PromptFL's: Guo et al.,
    IEEE TMC 2023, algorithm 1.

    Attributes:
        tuning_epochs: Epochs of local fine-tuning after the upload; 0 keeps the
            prompt as it was sent.
        tuning_rate: Step size of that, above 0; by default the learning rate.
    """

    tuning_epochs: Annotated[int, Field(ge=0)] = 50
    tuning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a place for the tuned prompt, and that there is none yet."""
        shape = (task.prompts.context_tokens, task.prompts.width)
        return {"tuned": torch.zeros(shape), "is tuned": torch.tensor(False)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the received context, send it, and train it further."""
        contexts, loss = self.train(task, cohort, received["context"], at)
        tuned = contexts
        if self.tuning_epochs:
            tuner = replace(
                self,
                epochs=self.tuning_epochs,
                learning_rate=self.tuning_rate or self.learning_rate,
                optimizer_state="new",
            )
            tuned, _ = tuner.train(task, cohort, contexts, at.part("tuning"))
        done = torch.ones(len(cohort), dtype=torch.bool)
        private_state = {"tuned": tuned, "is tuned": done}
        return LocalResult(
            weighted_upload(cohort, {"context": contexts}), private_state, loss
        )

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the tuned prompt; who never trained has the average only."""
        done = kept["is tuned"][:, None, None]
        return {"context": torch.where(done, kept["tuned"], received["context"])}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return as PromptFL does; no upload shows the tuning."""
        reconstructed = super().rebuild(task, view, client)
        tuning = ("the client's fine-tuning",) if self.tuning_epochs else ()
        return replace(reconstructed, missing=reconstructed.missing + tuning)
