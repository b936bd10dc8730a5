"""Rows over test records of which many clients have the same, each held once."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int, Shaped

from privaudit.statistics.intervals import weighted_means

Name = TypeVar("Name", bound=Hashable)

NUMBERS_AT_ONCE = 2**22  # 32 MiB of float64


@dataclass(frozen=True)
class RepeatedRows:
    """A table of which many rows are equal.

    Attributes:
        rows: The different ones, of scores or of weights.
        which: The row of each client, or of each model.
    """

    rows: Shaped[np.ndarray, "different records"]
    which: Int[np.ndarray, " clients"]

    @classmethod
    def of(
        cls, table: "RepeatedRows | Shaped[np.ndarray, 'clients records']"
    ) -> "RepeatedRows":
        """Return a table whose rows are held one by one as it is."""
        if isinstance(table, RepeatedRows):
            return table
        return cls(table, np.arange(len(table)))

    @classmethod
    def named(
        cls, names: Iterable[Name], rows: Mapping[Name, Shaped[np.ndarray, " records"]]
    ) -> "RepeatedRows":
        """Return each name's row."""
        place = {name: number for number, name in enumerate(rows)}
        which = np.array([place[name] for name in names])
        return cls(np.stack(list(rows.values())), which)

    @property
    def table(self) -> Shaped[np.ndarray, "clients records"]:
        """Every row, as often as it is there."""
        return self.rows[self.which]

    def mean(self) -> Float[np.ndarray, " records"]:
        """Return the mean over clients, added up in their order."""
        total = np.zeros((1, self.rows.shape[1]))
        for chosen in in_blocks(self.which, self.rows.shape[1]):
            total = np.concatenate([total, self.rows[chosen]]).sum(axis=0)[None]
        mean: Float[np.ndarray, " records"] = total[0] / len(self.which)
        return mean


def in_blocks(
    values: Int[np.ndarray, " clients"], records: int
) -> Iterable[Int[np.ndarray, " some"]]:
    """Yield some clients' values at a time, so that their rows fit into memory."""
    size = max(1, NUMBERS_AT_ONCE // max(1, records))
    return (values[first : first + size] for first in range(0, len(values), size))


def client_means(
    scores: RepeatedRows, weights: RepeatedRows
) -> tuple[Float[np.ndarray, " clients"], Float[np.ndarray, " records"]]:
    """Return each client's weighted mean, and each record's influence on their mean.

    Clients with the same scores and weights are computed once.
    """
    records, different = scores.rows.shape[1], len(weights.rows)
    means, total = [], np.zeros((1, records))
    for block in in_blocks(scores.which * different + weights.which, records):
        pairs, place = np.unique(block, return_inverse=True)
        of_pairs, influence = weighted_means(
            scores.rows[pairs // different], weights.rows[pairs % different]
        )
        means.append(of_pairs[place])
        total = np.concatenate([total, influence[place]]).sum(axis=0)[None]
    return np.concatenate(means), total[0] / len(scores.which)
