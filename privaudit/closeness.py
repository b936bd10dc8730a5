"""How close a rebuilt model is to the true one, with the wrong clients as null."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from privaudit.attack import Adversary, Target
from privaudit.runs import Run
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit.tensors import stack
from privaudit.trainer import ask


@dataclass(frozen=True)
class Closeness:
    """Rebuilt against true personal models; the null compares with other clients'.

    Attributes:
        cosine: Of the personal parts, each a model less the last broadcast.
        cosine_null: The same with the wrong clients.
        distance: Of the personal parts, relative to the true one's norm.
        distance_null: The same with the wrong clients.
        agreement: Share of public records that both classify alike.
        agreement_null: The same with the wrong clients.
    """

    cosine: Estimate
    cosine_null: Estimate
    distance: Estimate
    distance_null: Estimate
    agreement: Estimate
    agreement_null: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for audit.json."""
        return {name: value.to_dict() for name, value in vars(self).items()}


def measure_closeness(
    run: Run, adversary: Adversary, targets: Sequence[Target]
) -> Closeness | None:
    """Return how close the estimated models are; None if none is an estimate.

    Args:
        run: Holds the true personal models.
        adversary: Its view gives the part that all clients share.
        targets: With their rebuilt models.
    """
    if not all(target.rebuilt.estimated for target in targets) or len(targets) < 2:
        return None
    shared = [
        adversary.view.broadcasts_to(t.client)[-1].tensors["context"] for t in targets
    ]
    true = [run.personal_models[t.client] for t in targets]
    rebuilt = [t.rebuilt.model for t in targets]
    mine = _personal([m["context"] for m in rebuilt], shared)
    theirs = _personal([m["context"] for m in true], shared)
    cosines = cosine_similarity(mine[:, None], theirs[None], dim=-1)
    gaps = (mine[:, None] - theirs[None]).norm(dim=-1) / theirs.norm(dim=-1).clamp(
        min=1e-12
    )
    answers = [
        ask(run.trainer, adversary.task, stack(models), adversary.task.public)
        for models in (rebuilt, true)
    ]
    first, second = (answer.argmax(dim=-1) for answer in answers)
    alike = (first[:, None] == second[None]).float().mean(dim=-1)
    return Closeness(*_split(cosines), *_split(gaps), *_split(alike))


def _personal(
    contexts: Sequence[Tensor], shared: Sequence[Tensor]
) -> Float[Tensor, "clients size"]:
    pairs = zip(contexts, shared, strict=True)
    return torch.stack([(mine - common).flatten() for mine, common in pairs])


def _split(table: Float[Tensor, "clients clients"]) -> tuple[Estimate, Estimate]:
    """Return the right pairs' mean, and per client the mean over its wrong pairs."""
    values = table.double().numpy()
    count = len(values)
    wrong = (values.sum(axis=1) - values.diagonal()) / (count - 1)
    return mean_with_t(np.array(values.diagonal())), mean_with_t(wrong)
