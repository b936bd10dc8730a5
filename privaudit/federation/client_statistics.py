"""Statistics of a client's records that it sends beside its training.

A mean over records is linear in who the records are: each of its numbers is one
equation in the candidates' membership. :mod:`privaudit.attacks.shared_statistics`
solves them.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from privaudit.core.lazy_torch import Tensor
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.federation.uploads import STATISTIC, role_of

UNCERTAINTY = STATISTIC + "uncertainty"
EMBEDDING = STATISTIC + "mean embedding"
IMPROVEMENT = STATISTIC + "improvement"
SIZE = STATISTIC + "size"
ROUNDING_OF_SIZES = 1e-3
FITTING = 10.0  # in deviations of a mean's error, of which a sum has several
PRESENT = STATISTIC + "any records"


@runtime_checkable
class SharesStatistics(Trainer, Protocol):
    """A trainer whose clients send means over their records."""

    def contributions(
        self, task: Task, models: Stacked, records: Records
    ) -> Mapping[str, Float[Tensor, "models records width"]]:
        """Return what each record adds to the sum behind each mean that is sent."""

    def noise_std(self, task: Task) -> Mapping[str, float]:
        """Return the noise on each such *sum*; empty where nothing hides it.

        With noise a sum is divided by the task's ``expected_members``, and without by
        the number of records.
        """


def parameters_of(upload: Tensors) -> dict[str, Tensor]:
    """Return an upload without its statistics: the client's model."""
    return {n: t for n, t in upload.items() if role_of(n) != "statistic"}


def has_records(upload: Tensors) -> bool:
    """Say whether a client trained on anything; so it counts where nothing is sent."""
    counts = [upload[name] for name in (SIZE, PRESENT) if name in upload]
    return all(bool(tensor > 0) for tensor in counts)


def solve_means(
    equations: Float[np.ndarray, "rows candidates"],
    means: Float[np.ndarray, " rows"],
    share: float,
) -> Float[np.ndarray, " candidates"]:
    """Return the likeliest membership from means over an unknown number of records.

    Solves sum_j m_j f_j = n mean and sum_j m_j = n for the largest n that the bounds on
    m allow: any smaller n has the truth's multiple as a solution, a larger one mostly
    none. Where no n fits, the means are not of these candidates alone: then without n,
    from sum_j m_j (f_j - mean) = 0.

    The rows of ``equations`` are f, divided, like ``means``, by the standard deviation
    of a mean's error; ``share`` is the chance of a candidate to be a member, in (0, 1).
    """
    count = equations.shape[1]
    rows = np.vstack([equations, np.full(count, 1 / ROUNDING_OF_SIZES)])
    right = np.append(means, 1 / ROUNDING_OF_SIZES)
    fits, least, most = None, 1, count
    while least <= most:
        size = (least + most) // 2
        solution = solve_membership(rows, size * right, share)
        if np.abs(rows @ solution - size * right).max() < FITTING:
            fits, least = solution, size + 1
        else:
            most = size - 1
    if fits is not None:
        return fits
    return solve_membership(equations - means[:, None], np.zeros(len(means)), share)


def solve_membership(
    equations: Float[np.ndarray, "rows candidates"],
    right: Float[np.ndarray, " rows"],
    share: float,
) -> Float[np.ndarray, " candidates"]:
    """Return the likeliest membership of each candidate, from 0 to 1.

    Minimises |A m - b|^2 + |m - share|^2 / (share (1 - share)) over 0 <= m <= 1: least
    squares with the coin as a prior, taken as normal. With as many equations as
    candidates the prior counts for nothing; with fewer it spreads what is left open.

    ``equations`` is A and ``right`` is b, each row divided by the standard deviation of
    its error; ``share`` is the chance of a candidate to be a member, in (0, 1).

    Example:
        >>> solve_membership(1e6 * np.eye(2), 1e6 * np.array([1.0, 0.0]), 0.5).round(3)
        array([1., 0.])
    """
    from scipy.linalg import qr  # slow to import, as is the other
    from scipy.optimize import lsq_linear

    count = equations.shape[1]
    # Only the triangle matters, and it has at most one row more than candidates.
    joined = np.column_stack([equations, right])
    _, triangle = qr(joined, mode="economic")
    prior = 1 / np.sqrt(share * (1 - share))
    matrix = np.vstack([triangle[:, :count], prior * np.eye(count)])
    wanted = np.concatenate([triangle[:, count], np.full(count, prior * share)])
    solution = lsq_linear(
        matrix, wanted, bounds=(0, 1), method="bvls", max_iter=20 * count
    )
    return solution.x
