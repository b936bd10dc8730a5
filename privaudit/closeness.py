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
from privaudit.seeds import Seeds
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit.tensors import Tensors, stack
from privaudit.trainer import ask_each


@dataclass(frozen=True)
class Closeness:
    """Rebuilt against true personal models; the null compares with other clients'.

    Attributes:
        cosine: Of what training added to the personal parts: the rebuilt model less
            the last broadcast, the true one less what its untrained personal part gives
            with that broadcast.
        cosine_null: The same with the wrong clients.
        distance: Of the same, relative to the true one's norm.
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
    received = [adversary.view.broadcasts_to(t.client)[-1].tensors for t in targets]
    true = [run.personal_models[t.client] for t in targets]
    rebuilt = [t.rebuilt.model for t in targets]
    if not all("context" in part for part in (*received, *true, *rebuilt)):
        return None  # no one prompt to compare
    pairs = zip(targets, received, strict=True)
    shared = [(target.rebuilt.shared or part)["context"] for target, part in pairs]
    mine = _added([m["context"] for m in rebuilt], shared)
    theirs = _added([m["context"] for m in true], _untrained(run, targets, received))
    cosines = cosine_similarity(mine[:, None], theirs[None], dim=-1)
    gaps = (mine[:, None] - theirs[None]).norm(dim=-1) / theirs.norm(dim=-1).clamp(
        min=1e-12
    )
    answers = [
        ask_each(run.trainer, adversary.task, models, adversary.task.public)
        for models in (rebuilt, true)
    ]
    first, second = (answer.argmax(dim=-1) for answer in answers)
    alike = (first[:, None] == second[None]).float().mean(dim=-1)
    return Closeness(*_split(cosines), *_split(gaps), *_split(alike))


def _untrained(
    run: Run, targets: Sequence[Target], received: Sequence[Tensors]
) -> list[Tensor]:
    """Return the personal models that the clients' private starts would give."""
    task, seeds = run.population.task, Seeds(run.config.seed)
    untrained = []
    for target, down in zip(targets, received, strict=True):
        start = run.trainer.start_client(task, target.client, seeds)
        model = run.trainer.release(
            task, [target.client], stack([down]), stack([start])
        )
        untrained.append(model["context"][0])
    return untrained


def _added(
    contexts: Sequence[Tensor], starts: Sequence[Tensor]
) -> Float[Tensor, "clients size"]:
    pairs = zip(contexts, starts, strict=True)
    return torch.stack([(context - start).flatten() for context, start in pairs])


def _split(table: Float[Tensor, "clients clients"]) -> tuple[Estimate, Estimate]:
    """Return the right pairs' mean, and per client the mean over its wrong pairs."""
    values = table.double().numpy()
    count = len(values)
    wrong = (values.sum(axis=1) - values.diagonal()) / (count - 1)
    return mean_with_t(np.array(values.diagonal())), mean_with_t(wrong)
