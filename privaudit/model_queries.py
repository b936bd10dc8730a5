"""How often a model was asked by clients that can do no more than ask."""

from collections.abc import Mapping, Sized
from typing import Protocol, runtime_checkable

from privaudit.records import ClientId
from privaudit.trainer import Round, Trainer


@runtime_checkable
class CountsQueries(Protocol):
    """A trainer whose clients pay for every answer."""

    def model_queries(self, records: int) -> int:
        """Return how many a client with so many records makes in a round.

        One query is one record, answered by one model.
        """
        ...


def queries_of(
    trainer: Trainer, shards: Mapping[ClientId, Sized], at: Round
) -> int | None:
    """Return the queries of all participants of a round; None if nobody counts."""
    if not isinstance(trainer, CountsQueries):
        return None
    return sum(trainer.model_queries(len(shards[c])) for c in at.participants)
