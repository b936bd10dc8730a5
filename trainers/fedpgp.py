"""FedPGP: a shared prompt and a private one of low rank, kept apart by a contrast."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.devices import here
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, stack
from privaudit.federation.batches import Batch, Batches
from privaudit.federation.on_device import computes
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
from privaudit.federation.uploads import UNTRAINED, last_sent, weighted_upload
from privaudit.tuning.optimiser import fit
from privaudit.tuning.prompts.contrast import (
    contrasted_losses,
    low_rank_start,
    personal_context,
)
from privaudit.tuning.prompts.learning import LocalSgd

PUBLIC_STEPS = 100  # of an adversary on its own records, to guess what it lacks


@TRAINERS.register("fedpgp")
@dataclass(frozen=True)
class FedPGP(LocalSgd):
    """FedPGP: send the global prompt sigma, keep the low-rank U and V.

    The first prompt is drawn by ``LocalSgd.start``, tuning/prompts/learning.py.

    To the cross-entropy comes a contrast: sigma's text features shall be nearer to
    those of the hand-written prompt than to those of sigma + U V. The server takes the
    mean weighted by shard sizes: ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: Cui et al., "Harmonizing generalization and personalization in federated
    prompt learning", ICML 2024, equations 5 to 10 and algorithm 1. Their code takes the
    placeholder "X X ... X name." for the hand-written prompt; ours is the data set's.

    Attributes:
        rank: Rank of U V, at least 1; published 8.
        contrast: Weight mu of the contrastive loss, at least 0; published 1. At 0 it costs
            nothing either.
        temperature: Temperature of the contrastive loss, above 0; published 0.5.
    """

    rank: Annotated[int, Field(ge=1)] = 8
    contrast: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return random factors of the client's own."""
        return low_rank_start(task, client, self.rank, seeds)

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train sigma, U and V, and send sigma weighted by the shard's size."""
        objective = partial(self._losses, task)
        trained, loss = self.fit(task, cohort, {**received, **kept}, objective, at)
        sent = weighted_upload(cohort, {"context": trained.pop("context")})
        return LocalResult(sent, trained, loss)

    def _losses(self, task: Task, parameters: Stacked, batch: Batch) -> Tensor:
        return contrasted_losses(
            task, parameters, batch, self.contrast, self.temperature
        )

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release sigma + U V."""
        return {"context": personal_context({**received, **kept})}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's last upload, completed if the contrast bends it.

        Sigma alone is no good model once the contrast has pushed it away from the
        personal prompt. Measured on the embedded model over three seeds, factors
        trained on public records bring the rebuilt prompt closer to the client's
        (cosine of what training added from -0.06 to 0.12, equal answers from 0.70 to
        0.88). Integrating sigma's moves, as dp-fpl's rebuild does, changes nothing: U V
        is expected to move 2 rank 0.02^2 times as far in their direction, and the
        contrast moves it more.
        """
        hidden, sent = "the client's low-rank prompt", last_sent(view, client)
        if sent is None:
            shared = view.last_broadcast(client).tensors["context"]
            return Reconstruction({"context": shared}, (hidden, UNTRAINED))
        if not self.contrast:
            return Reconstruction(sent, (hidden,))
        context = self._complete(task, sent["context"])
        return Reconstruction({"context": context}, (hidden,), 0, True)

    @computes
    def _complete(self, task: Task, sigma: Tensor) -> Tensor:
        """Return sigma + U V with factors that the client's optimiser learns."""
        whole = torch.arange(len(task.public)).expand(PUBLIC_STEPS, 1, -1)
        factors, _ = fit(
            Cohort.of(["public"], [task.public.to(here())]),
            stack([low_rank_start(task, "public", self.rank, Seeds(0))]),
            Batches(whole, torch.ones_like(whole).bool()),
            lambda f, batch: self._losses(task, {"context": sigma[None], **f}, batch),
            self.optimiser,
            self.learning_rate,
        )
        return personal_context({"context": sigma[None], **factors})[0]
