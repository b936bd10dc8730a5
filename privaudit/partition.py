"""Dealing a data set's records to clients.

Every record is one of: a *test* record (utility), a *public* one (the adversary's
shadows) or a *candidate* of one client.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Int
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.errors import ConfigError
from privaudit.seeds import Seeds

PUBLIC, TEST = -1, -2  # owners that are not clients
FEWEST_PUBLIC = 10  # shadow models train on half of them, and are judged on the rest


@options(frozen=True)
class Pathological:
    """Classes are split at random, disjointly and as evenly as they go."""

    def deal(
        self, labels: Int[np.ndarray, " n"], clients: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " n"]:
        """Return each record's client.

        Raises:
            ConfigError: There are more clients than classes.
        """
        classes = rng.permutation(np.unique(labels))
        if clients > len(classes):
            raise ConfigError(
                f"A pathological partition over {clients} clients was asked for, and "
                f"there are {len(classes)} classes: each client needs a class of its "
                "own. Take fewer clients, or --partition dirichlet."
            )
        owner_of = {
            label: client
            for client, group in enumerate(np.array_split(classes, clients))
            for label in group.tolist()
        }
        return np.array([owner_of[label] for label in labels.tolist()])


@options(frozen=True)
class Dirichlet:
    """Each class is dealt in shares drawn from a Dirichlet distribution.

    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution
    for federated visual classification", 2019, with the share per class.

    Attributes:
        alpha: Concentration, above 0: small gives each class to few clients.
    """

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5

    def deal(
        self, labels: Int[np.ndarray, " n"], clients: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " n"]:
        """Return each record's client."""
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            mine = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(mine)).astype(int)
            for client, part in enumerate(np.split(mine, cuts)):
                owner[part] = client
        return owner


Partition = Pathological | Dirichlet


@dataclass(frozen=True)
class Deal:
    """Who owns each record; who is a member stands in the ledger alone.

    Attributes:
        owner: A client's number, ``PUBLIC`` or ``TEST``.
    """

    owner: Int[np.ndarray, " n"]

    def of(self, owner: int) -> Int[np.ndarray, " part"]:
        """Return the records of one owner, in the data set's order."""
        return np.flatnonzero(self.owner == owner)


def deal_records(
    labels: Int[np.ndarray, " n"],
    partition: Partition,
    *,
    clients: int,
    test_share: float,
    public_share: float,
    seeds: Seeds,
) -> Deal:
    """Split records into test, public and the clients' candidates.

    Args:
        labels: Class indices.
        partition: How candidates are dealt.
        clients: How many.
        test_share: Part kept for utility, in (0, 1).
        public_share: Part that belongs to nobody, in (0, 1).
        seeds: Of the run.

    Raises:
        ConfigError: The shares leave no candidates, no test record or hardly a public
            one, or a client would have too few.
    """
    if (
        clients < 1
        or min(test_share, public_share) <= 0
        or test_share + public_share >= 1
    ):
        raise ConfigError(
            f"{clients} clients, a test share of {test_share:g} and a public share of "
            f"{public_share:g} leave no candidates. Take at least one client, and "
            "shares above 0 whose sum is below 1."
        )
    rng = seeds.numpy("deal")
    order = rng.permutation(len(labels))
    tests, publics = round(test_share * len(labels)), round(public_share * len(labels))
    _refuse_tiny(tests, publics, len(labels))
    owner = np.empty(len(labels), dtype=np.int64)
    owner[order[:tests]] = TEST
    owner[order[tests : tests + publics]] = PUBLIC
    rest = np.sort(order[tests + publics :])
    owner[rest] = partition.deal(labels[rest], clients, rng)
    _refuse_empty(owner, clients)
    return Deal(owner)


def _refuse_tiny(tests: int, publics: int, records: int) -> None:
    if tests < 1 or publics < FEWEST_PUBLIC:
        raise ConfigError(
            f"The shares of {records} records leave {tests} for tests and {publics} "
            f"public ones, and 1 and {FEWEST_PUBLIC} are needed at least. Raise "
            "test_share or public_share."
        )


def _refuse_empty(owner: Int[np.ndarray, " n"], clients: int) -> None:
    counts = np.bincount(owner[owner >= 0], minlength=clients)
    if counts.min() < 2:
        raise ConfigError(
            f"Client {int(counts.argmin())} of {clients} got {int(counts.min())} "
            "candidates, and at least 2 are needed to tell members from others. Take "
            "fewer clients, a larger alpha or another seed."
        )
