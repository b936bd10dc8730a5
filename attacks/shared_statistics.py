"""Shared statistics: whose records add up to what a client says of them?"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.core.errors import ViewError
from privaudit.core.lazy_torch import torch
from privaudit.core.tensors import Tensors, stack
from privaudit.federation.client_statistics import (
    EMBEDDING,
    UNCERTAINTY,
    SharesStatistics,
    has_records,
    parameters_of,
    solve_means,
    solve_membership,
)
from privaudit.federation.trainer import Records

ROUNDING = 1e-6  # relative error of a mean that is sent in float32
SOLVED = {EMBEDDING, UNCERTAINTY}
NOT_APPLICABLE = (
    "The attack shared-statistics was asked for, and clients of this run send no mean "
    "over their records. It applies to --trainer fedpt-dhapa with alpha or beta above "
    "0. Take another scenario, such as server-reconstruct."
)


@ATTACKS.register("shared-statistics")
@dataclass(frozen=True)
class SharedStatistics:
    """Score a candidate by the membership that explains a client's statistics best.

    A mean over n records is sum_j m_j f(x_j) / n, with m_j 1 for members: a linear
    equation for each number of the mean, once n is known, for which the largest is
    taken that has a solution. The mean embedding gives as many as it is wide, the same
    ones in every round; the mean entropy gives one more a round, each under another
    model, which the adversary has. All are solved at once for m in [0, 1] with the coin
    as a prior. The list is taken to be complete: members that are not on it act as
    noise. Nothing is asked of the client's model but entropies, and no label is
    looked at.

    Where the statistics carry noise, sums are noised and divided by a public number:
    then sum_j m_j f(x_j) is known up to that noise, which rounds average out.

    Source: linear reconstruction after Dinur and Nissim, "Revealing information while
    preserving privacy", PODS 2003; no formula of theirs is copied.
    """

    threshold: ClassVar[str] = "half of the client's largest score"
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"
    reads_uploads: ClassVar[Literal[True]] = True

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in [0, 1].

        Raises:
            ViewError: The trainer's clients send no such statistics, or the adversary
                does not see them.
        """
        return [self._score(adversary, target) for target in targets]

    def _score(self, adversary: Adversary, target: Target) -> Scores:
        uploads = [m.tensors for m in adversary.view.updates_of(target.client)]
        matrix, means, is_noised = _equations(adversary, target.candidates, uploads)
        share = min(adversary.task.member_share, 0.999)  # at 1 the prior is a fact
        if not has_records(uploads[-1]):
            scores = np.zeros(len(target.candidates))
        elif is_noised:
            sums = means * adversary.task.expected_members
            scores = solve_membership(matrix, sums, share)
        else:
            scores = solve_means(matrix, means, share)
        return Scores(scores, scores > scores.max() / 2)


def _equations(
    adversary: Adversary, candidates: Records, uploads: Sequence[Tensors]
) -> tuple[Float[np.ndarray, "rows candidates"], Float[np.ndarray, " rows"], bool]:
    """Return what each candidate adds, and the means, each in units of its error.

    And whether noise was added to the sums.
    """
    trainer, task = adversary.trainer, adversary.task
    if not isinstance(trainer, SharesStatistics) or not SOLVED & uploads[0].keys():
        raise ViewError(NOT_APPLICABLE)
    models = stack([parameters_of(sent) for sent in uploads])
    stds = trainer.noise_std(task)
    rows, means = [], []
    for name, contributions in trainer.contributions(task, models, candidates).items():
        each = contributions.double().transpose(1, 2).flatten(0, 1).numpy()
        mean = torch.cat([sent[name].flatten() for sent in uploads]).double().numpy()
        error = ROUNDING * max(float(np.abs(each).max()), ROUNDING)
        rows.append(each / stds.get(name, error))
        means.append(mean / stds.get(name, error))
    return np.vstack(rows), np.concatenate(means), bool(stds)
