"""Clients' members, held only while they train."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.population import Population
from privaudit.federated.trainer import ClientId, Records


@dataclass(frozen=True)
class MemberShards(Mapping[ClientId, Records]):
    """Each client's members, picked when it trains: who is absent costs nothing."""

    population: Population
    ledger: Ledger

    def __getitem__(self, client: ClientId) -> Records:
        number = self.population.numbers[client]
        return self.population.pick(self.ledger.members_of(number))

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @cached_property
    def _clients(self) -> Sequence[ClientId]:
        """Who may take part: all, unless a coin decided for each client."""
        everybody = self.population.task.clients
        if self.population.split.members != "clients":
            return everybody
        return [one for one in everybody if len(self.ledger.members_of(one))]
