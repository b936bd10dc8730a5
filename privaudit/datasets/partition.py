"""Partitions of candidates among clients: by class, by shares of classes, or by owner.

A partition returns each record's client, or ``UNUSED``. Those by a class of
flwr_datasets.partitioner, as ``flwr:NAME:key=value``, are asked for the numbers of their
records; records themselves are not seen.
"""

import heapq
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from numpy.random import Generator
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    TooFewRecordsError,
    nearest,
    one_line,
    shown,
)
from privaudit.core.formatting import install_line
from privaudit.core.parameters import parse_spec

FLOWER = "flwr:"
_EXAMPLE = "flwr:DirichletPartitioner:alpha=0.5"
_OWNERS = ("owner", "domain")  # two names for one column
_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_Value = bool | int | float | str | None
Numbers = Int[np.ndarray, " n"]
Domains = Numbers | None


@dataclass(frozen=True)
class FlowerPartition:
    """A partitioner of flwr-datasets, asked for each client's records.

    It gets them in an order that is drawn by the seed, as Flower's FederatedDataset
    shuffles them, with the columns label and, where the data set has domains, owner
    and domain.

    Attributes:
        name: Of a class of flwr_datasets.partitioner, such as DirichletPartitioner.
        parameters: Its own. ``num_partitions`` is the number of clients;
            ``partition_by`` is "label", and ``seed`` drawn by the run's, unless given.
    """

    name: str
    parameters: Mapping[str, _Value]

    @classmethod
    def of(cls, text: str) -> "FlowerPartition":
        """Return the partition that flwr:NAME:key=value,key=value describes.

        Numbers, true, false and none are read as such, everything else is a word.
        """
        name, pairs = parse_spec("--partition", text.removeprefix(FLOWER), _EXAMPLE)
        parameters = {key: _value(given) for key, given in sorted(pairs.items())}
        for word in (name, *parameters, *parameters.values()):
            if isinstance(word, str) and not _WORD.fullmatch(word):
                raise ConfigError(
                    f"{shown(word)} is neither a word nor a number. Write "
                    f"flwr:NAME:key=value, as in {_EXAMPLE}."
                )
        if "num_partitions" in parameters:
            raise ConfigError(
                "num_partitions is the number of clients. Leave it out, and use "
                "--clients."
            )
        return cls(name, parameters)

    def __str__(self) -> str:
        """Return the text that describes it, parameters in alphabetical order.

        Example:
            >>> str(FlowerPartition.of("flwr:ShardPartitioner:shuffle=False,seed=07"))
            'flwr:ShardPartitioner:seed=7,shuffle=false'
        """
        pairs = (f"{key}={_written(value)}" for key, value in self.parameters.items())
        return f"{FLOWER}{self.name}" + (f":{','.join(pairs)}" * bool(self.parameters))

    def split(
        self, labels: Numbers, clients: int, rng: Generator, domains: Domains = None
    ) -> Numbers:
        """Return each record's client: exactly one, or a ConfigError says why not."""
        factory = self._factory()
        order = rng.permutation(len(labels))
        columns = {"record": order, "label": labels[order]}
        if domains is not None:
            columns.update(dict.fromkeys(_OWNERS, domains[order]))
        settings = self._settings(factory, clients, int(rng.integers(2**31)))
        self._check_column(settings, columns)
        with self._refusing(len(labels), clients):
            partitioner = factory(**settings)
            datasets = importlib.import_module("datasets")
            table = {name: column.tolist() for name, column in columns.items()}
            partitioner.dataset = datasets.Dataset.from_dict(table)
            count = partitioner.num_partitions
        if count != clients:
            raise ConfigError(
                f"{self} makes {count:,} partitions of these candidates, and "
                f"{clients:,} clients were requested. Use --clients {count}."
            )
        with self._refusing(len(labels), clients):
            parts = [
                np.asarray(partitioner.load_partition(number)["record"][:], np.int64)
                for number in range(clients)
            ]
        return self._owners(parts, len(labels))

    def _factory(self) -> Any:
        """Return the class."""
        try:
            module = importlib.import_module("flwr_datasets.partitioner")
        except ImportError:
            raise ConfigError(
                f"--partition {self} needs flwr-datasets, which is not installed. "
                f"Install it with `{install_line('flower-datasets')}`, or use "
                "--partition dirichlet."
            ) from None
        names = [name for name in module.__all__ if name != "Partitioner"]
        if self.name not in names:
            raise ConfigError(
                f"flwr-datasets has no partitioner {shown(self.name)}."
                f"{nearest(self.name, names)} It has: {', '.join(names)}."
            )
        return getattr(module, self.name)

    def _settings(self, factory: Any, clients: int, seed: int) -> dict[str, Any]:
        """Return all that the class is called with."""
        known = inspect.signature(factory).parameters
        for key in self.parameters:
            if key not in known:
                raise ConfigError(
                    f"{self.name} has no parameter {shown(key)}. It has: "
                    f"{', '.join(name for name in known if name != 'num_partitions')}."
                )
        usual = {"num_partitions": clients, "partition_by": "label", "seed": seed}
        return {
            **{key: value for key, value in usual.items() if key in known},
            **self.parameters,
        }

    def _check_column(
        self, settings: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        """Refuse to partition by what candidates do not have."""
        there = [name for name in columns if name != "record"]
        by = settings.get("partition_by", there[0])
        if by not in there:
            raise ConfigError(
                f"{self} partitions by {shown(by)}, and the candidates have "
                f"{', '.join(there)}. Use one of these, or data that say whose their "
                "records are (--owner-column)."
            )

    @contextmanager
    def _refusing(self, records: int, clients: int) -> Iterator[None]:
        """Raise ConfigError of whatever a class of another package raises."""
        try:
            with warnings.catch_warnings():  # of draws that it repeats, or fails by
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}").rstrip(".")
            raise ConfigError(
                f"{self} did not split {records:,} candidates among {clients:,} "
                f"clients. {reason}. Use other parameters, or --partition dirichlet."
            ) from error

    def _owners(self, parts: Sequence[Int[np.ndarray, " _"]], records: int) -> Numbers:
        """Return each record's client, of the records of each client."""
        numbers = np.concatenate(parts)
        counts = np.bincount(numbers, minlength=records)
        if len(counts) != records or (counts != 1).any():
            raise ConfigError(
                f"{self} leaves out {int((counts == 0).sum()):,} of {records:,} "
                f"candidates and gives {int((counts > 1).sum()):,} to several clients. "
                "Use a partitioner, or parameters, that give each to one."
            )
        owner = np.empty(records, dtype=np.int64)
        owner[numbers] = np.repeat(np.arange(len(parts)), [len(one) for one in parts])
        return owner


def _value(given: str | None) -> _Value:
    """Return what a text means: a number, true, false, none, or a word."""
    if given is None or given.lower() in ("true", "false"):
        return given and given.lower() == "true"
    for read in (int, float):
        with suppress(ValueError):
            return read(given)
    return given


def _written(value: _Value) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


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
