"""Partitions by a class of flwr_datasets.partitioner, as ``flwr:NAME:key=value``.

They are asked for the numbers of their records; records themselves are not seen.
"""

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from privaudit.core.errors import ConfigError, nearest, one_line, shown
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
            partitioner.dataset = _dataset(columns)
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


def _dataset(columns: Mapping[str, Numbers]) -> Any:
    """Return columns as what partitioners take."""
    datasets = importlib.import_module("datasets")
    return datasets.Dataset.from_dict({n: one.tolist() for n, one in columns.items()})


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
