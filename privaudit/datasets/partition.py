"""Partitions of candidates among clients: by class, by shares of classes, or by owner.

A partition returns each record's client, or ``UNUSED``.
"""

import heapq
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated

import numpy as np
from jaxtyping import Int
from numpy.random import Generator
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.core.errors import ConfigError, DatasetError, TooFewRecordsError
from privaudit.datasets.flower_partition import Domains, FlowerPartition, Numbers

FEWEST_CANDIDATES = 2  # of a client: fewer do not distinguish members from others
DRAWS = 10  # of a Dirichlet partition, until every client has so many; then repaired
UNUSED = -3  # owns a record that is assigned to nobody

Concentration = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@options(frozen=True)
class Pathological:
    """Classes are split at random, disjointly and as evenly as they go."""

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client."""
        classes = rng.permutation(np.unique(labels))
        if clients > len(classes):
            raise ConfigError(
                f"A pathological partition over {clients} clients was requested, but "
                f"there are {len(classes)} classes: each client needs a class of its "
                "own. Use fewer clients, or --partition dirichlet."
            )
        owner_of = {
            label: client
            for client, group in enumerate(np.array_split(classes, clients))
            for label in group.tolist()
        }
        return np.array([owner_of[label] for label in labels.tolist()])


@options(frozen=True)
class Dirichlet:
    """Each class is split in shares drawn from a Dirichlet distribution.

    All shares are drawn again, up to ``DRAWS`` times, while a client has fewer than
    ``FEWEST_CANDIDATES`` records; the last ones are repaired.

    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution
    for federated visual classification", 2019, with the share per class.

    Attributes:
        alpha: Concentration, above 0: small gives each class to few clients.
    """

    alpha: Concentration = 0.5

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client; all have enough, if there are enough at all."""
        for _ in range(DRAWS):
            owner = self._draw(labels, clients, rng)
            if np.bincount(owner, minlength=clients).min() >= FEWEST_CANDIDATES:
                return owner
        return repaired(owner, clients, rng)

    def _draw(self, labels: Numbers, clients: int, rng: Generator) -> Numbers:
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            records = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(records)).astype(int)
            sizes = np.diff(cuts, prepend=0, append=len(records))
            owner[records] = np.repeat(np.arange(clients), sizes)
        return owner


def repaired(owner: Numbers, clients: int, rng: Generator) -> Numbers:
    """Return a partition in which every client has ``FEWEST_CANDIDATES`` records.

    As few records move as can: each one that is lacking comes from who has most at that
    moment, the first of equals, and is drawn from theirs. Where there are not enough
    for all, nothing moves.
    """
    counts = np.bincount(owner, minlength=clients)
    missing = np.maximum(FEWEST_CANDIDATES - counts, 0)
    if not missing.any() or counts.sum() < FEWEST_CANDIDATES * clients:
        return owner
    owner, parts = owner.copy(), records_by(owner)
    richest = [(-int(count), client) for client, count in enumerate(counts)]
    heapq.heapify(richest)
    for client in np.repeat(np.arange(clients), missing).tolist():
        count, donor = richest[0]
        place = int(rng.integers(-count))
        owner[parts[donor][place]] = client
        parts[donor] = np.delete(parts[donor], place)
        heapq.heapreplace(richest, (count + 1, donor))
    return owner


def records_by(owner: Numbers) -> dict[int, Int[np.ndarray, " part"]]:
    """Return each owner's records in their order: sorted once, not searched for each."""
    order = np.argsort(owner, kind="stable")
    owners, first = np.unique(owner[order], return_index=True)
    parts = np.split(order, first[1:])
    return dict(zip(owners.tolist(), parts, strict=False))  # one part of no records


@options(frozen=True)
class ByDomain:
    """Clients are spread evenly over domains, and share theirs by Dirichlet.

    With D domains, clients 0, D, 2D … have the first one, clients 1, D + 1 … the
    second, and so on.

    Attributes:
        alpha: Concentration inside a domain, as in :class:`Dirichlet`.
    """

    alpha: Concentration = 0.5

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client."""
        owner = np.empty(len(labels), dtype=np.int64)
        for records, those in _spread(domains, clients):
            owner[records] = those[
                Dirichlet(self.alpha).split(labels[records], len(those), rng)
            ]
        return owner


@options(frozen=True)
class Natural:
    """Each client is an owner, such as a writer or a patient: a domain of the data set.

    Owners with fewer than ``FEWEST_CANDIDATES`` records are left out. Where more are
    left than there are clients, as many are drawn as are needed.
    """

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client, by the number of its owner."""
        if domains is None:
            raise DatasetError(
                "A natural partition was requested, but the data set does not say whose "
                "its records are. Name an --owner-column, use a data set with domains, "
                "or --partition dirichlet."
            )
        owners, number, counts = np.unique(
            domains, return_inverse=True, return_counts=True
        )
        large = np.flatnonzero(counts >= FEWEST_CANDIDATES)
        if len(large) < clients:
            raise TooFewRecordsError(
                f"{clients:,} clients were requested, and {len(large):,} of "
                f"{len(owners):,} owners have the {FEWEST_CANDIDATES} candidates that "
                f"tell members from others. Use --clients {len(large)}, or fewer."
            )
        client_of = np.full(len(owners), UNUSED)
        client_of[np.sort(rng.permutation(large)[:clients])] = np.arange(clients)
        return client_of[number]


@options(frozen=True)
class ByShards:
    """Records in the order of their classes are cut into equal shards, drawn at random.

    A client so has few classes, and all have equally many records up to one a shard.

    Source: McMahan et al., "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017, section 3: 200 shards of 300, two for a client.

    Attributes:
        shards: Of each client, at least 1.
    """

    shards: Annotated[int, Field(ge=1)] = 2

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client."""
        count = self.shards * clients
        if len(labels) < count:
            raise TooFewRecordsError(
                f"{self.shards} shards for each of {clients:,} clients were requested, "
                f"and there are {len(labels):,} candidates. Use fewer shards or clients."
            )
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        sizes = [len(part) for part in np.array_split(order, count)]
        owner = np.empty(len(labels), dtype=np.int64)
        owner[order] = np.repeat(rng.permutation(count) % clients, sizes)
        return repaired(owner, clients, rng)


@options(frozen=True)
class BySizes:
    """Records are assigned at random, in numbers that are given or follow a power law.

    Attributes:
        sizes: Candidates of each client, as "20,5,5"; or "power:1.5", by which the n-th
            client's share is as n to the power of -1.5, rounded by largest remainder,
            and nobody's is below ``FEWEST_CANDIDATES``.
    """

    sizes: str = "power:1"

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client; where sizes are given, others are unused."""
        sizes = self.of(len(labels), clients)
        owner = np.full(len(labels), UNUSED)
        owner[rng.permutation(len(labels))[: sum(sizes)]] = np.repeat(
            np.arange(clients), sizes
        )
        return owner

    def of(self, records: int, clients: int) -> list[int]:
        """Return how many of so many records each client gets."""
        kind, _, exponent = self.sizes.partition(":")
        if kind == "power":
            spare = records - FEWEST_CANDIDATES * clients
            if spare < 0:
                raise TooFewRecordsError(
                    f"{clients:,} clients were requested, and there are {records:,} "
                    f"candidates: fewer than {FEWEST_CANDIDATES} for each. Use fewer "
                    "clients."
                )
            ranks = range(1, clients + 1)
            shares = [round(10**9 * n ** -float(exponent)) for n in ranks]
            more = largest_remainder(shares, spare)
            return [FEWEST_CANDIDATES + one for one in more]
        sizes = [int(one) for one in self.sizes.split(",")]
        if len(sizes) != clients:
            raise ConfigError(
                f"{len(sizes)} sizes were given for {clients:,} clients. Give each one."
            )
        if min(sizes) < FEWEST_CANDIDATES:
            place = sizes.index(min(sizes))
            raise ConfigError(
                f"client-{place} would get {sizes[place]} of the candidates, by the sizes "
                f"given. Give each client at least {FEWEST_CANDIDATES}."
            )
        if sum(sizes) > records:
            raise TooFewRecordsError(
                f"Sizes of {sum(sizes):,} candidates in all were given, and there are "
                f"{records:,}. Give smaller ones, or lower test_share or public_share."
            )
        return sizes


def largest_remainder(shares: list[int], total: int) -> list[int]:
    """Return whole numbers in the proportions of ``shares`` that add up to ``total``.

    Computed without rounding errors; of equal remainders the first one is rounded up.

    Example:
        >>> largest_remainder([1, 1, 1, 4], 10)
        [2, 1, 1, 6]
    """
    exact = [Fraction(total * share, sum(shares)) for share in shares]
    counts = [int(one) for one in exact]
    left = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for place in left[: total - sum(counts)]:
        counts[place] += 1
    return counts


Partition = (
    Pathological | Dirichlet | ByDomain | Natural | ByShards | BySizes | FlowerPartition
)


def _spread(domains: Domains, clients: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each domain's records and clients."""
    unique = np.unique(domains) if domains is not None else np.zeros(0)
    if domains is None or len(unique) < 2:
        raise DatasetError(
            f"A partition by domains was requested, but the data set has {len(unique)} "
            "of them. Use a data set with domains, or --partition dirichlet."
        )
    if clients % len(unique):
        raise ConfigError(
            f"{clients} clients cannot be spread evenly over {len(unique)} domains. "
            f"Use a multiple of {len(unique)}."
        )
    for place, domain in enumerate(unique):
        yield np.flatnonzero(domains == domain), np.arange(place, clients, len(unique))
