"""Whitened alignment: is what a client sent likelier with this record than without?"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.gradient_regression import (
    NOISE_GRID,
    GramBlock,
    likeliest_step,
)
from privaudit.auditing.record_gradients import chosen_moves, gram_blocks
from privaudit.auditing.signals import reference_records
from privaudit.core.lazy_torch import torch
from privaudit.federation.trainer import Records

NEGLIGIBLE = 1e-10  # of the largest eigenvalue: gradients have no such direction


@ATTACKS.register("whitened-alignment")
@dataclass(frozen=True)
class WhitenedAlignment:
    """Score a candidate by the likelihood ratio of a move with its gradient and without.

    A move is a mean of b gradients, up to a step and noise that are fitted. With mean mu
    and covariance S of gradients, and V = S / b + noise, a candidate of gradient g has
    the ratio d' V^-1 (m - mu) - d' V^-1 d / 2, d = (g - mu) / b, m the move over the
    step: update alignment, centred and whitened. Ratios of tensors and rounds add up.
    Gradients are averaged over the straight path of a move; b is half of the candidates.

    Source: Michel, Basu, Kaufmann, "Sequential membership inference attacks" (SeMI*),
    arXiv 2602.16596, 2026, from its abstract and what readers say of it. There batch,
    step and noise are known, one step lies between two states, and mu and S are public
    records'. Here they are those of public records and candidates together: with fewer
    records than numbers, public ones leave directions of candidates without a variance.

    Attributes:
        reference: Public records whose gradients are the usual ones, at most.
        rounds: From so many, spread evenly, moves are taken; 0 takes all.
    """

    threshold: ClassVar[str] = "likelier in what was sent than not"
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"
    reads_uploads: ClassVar[Literal[True]] = True

    reference: Annotated[int, Field(ge=2)] = 200
    rounds: Annotated[int, Field(ge=0)] = 20

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates: log-likelihood ratios, in nats.

        Raises:
            ViewError: The view shows no moves of weights.
            AttackError: No gradients of single records are to be had.
        """
        public = reference_records(adversary, "alignment", self.reference)
        return [self._score(adversary, one, public, len(targets)) for one in targets]

    def _score(
        self, adversary: Adversary, target: Target, public: Records, others: int
    ) -> Scores:
        together = 1 if adversary.view.sees_updates_of(target.client) else others
        batch = max(1.0, together * len(target.candidates) / 2)
        records = Records.joined([public, target.candidates])
        nothing, by_round = np.zeros(len(target.candidates)), {}
        for move in chosen_moves(adversary, target.client, self.rounds):
            blocks = gram_blocks(adversary, move, records)
            each = [likelihood_ratios(block, len(public), batch) for block in blocks]
            by_round[move.at.index] = sum((one.numpy() for one in each), nothing)
        scores = sum(by_round.values(), nothing)
        return Scores(scores, scores > 0, by_round)


def likelihood_ratios(
    block: GramBlock, public: int, batch: float
) -> Float[torch.Tensor, " candidates"]:
    """Return the ratio of each record behind the first so many, which are public.

    All is computed along the directions that some record's gradient has.
    """
    values, vectors = torch.linalg.eigh(block.gram)
    held = values > values[-1].clamp(min=0) * NEGLIGIBLE
    values, vectors = values[held], vectors[:, held]
    rows, seen = vectors * values.sqrt(), vectors.T @ block.along / values.sqrt()
    if not seen.any():
        return torch.zeros(len(rows) - public, dtype=torch.float64)
    mean, covariance = rows.mean(dim=0), torch.cov(rows.T)
    variances, axes = torch.linalg.eigh(torch.atleast_2d(covariance) / batch)
    variances = variances.clamp(min=0)
    _, step, noise = likeliest_step(
        axes.T @ seen, axes.T @ mean, variances, NOISE_GRID * values.sum() / len(rows)
    )
    own = (rows[public:] - mean) @ axes / batch
    weights = 1 / (variances + noise)
    return (own * weights) @ (axes.T @ (seen / step - mean)) - own**2 @ weights / 2
