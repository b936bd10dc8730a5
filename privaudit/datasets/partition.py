"""How candidates are dealt to clients: by class, by shares of classes, or by domain."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from jaxtyping import Int
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.core.errors import ConfigError, DatasetError

FEWEST_CANDIDATES = 2  # of a client: members cannot be told from others in fewer
DRAWS = 100  # tries of a Dirichlet partition until every client has so many

Concentration = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@options(frozen=True)
class Pathological:
    """Classes are split at random, disjointly and as evenly as they go."""

    def split(
        self,
        labels: Int[np.ndarray, " n"],
        clients: int,
        rng: np.random.Generator,
        domains: Int[np.ndarray, " n"] | None = None,
    ) -> Int[np.ndarray, " n"]:
        """Return each record's client.

        Raises:
            ConfigError: There are more clients than classes.
        """
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
    """Each class is dealt in shares drawn from a Dirichlet distribution.

    All shares are drawn again, up to ``DRAWS`` times, while a client has fewer than
    ``FEWEST_CANDIDATES`` records.

    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution
    for federated visual classification", 2019, with the share per class.

    Attributes:
        alpha: Concentration, above 0: small gives each class to few clients.
    """

    alpha: Concentration = 0.5

    def split(
        self,
        labels: Int[np.ndarray, " n"],
        clients: int,
        rng: np.random.Generator,
        domains: Int[np.ndarray, " n"] | None = None,
    ) -> Int[np.ndarray, " n"]:
        """Return each record's client; after the last draw, whatever it gave."""
        for _ in range(DRAWS):
            owner = self._draw(labels, clients, rng)
            if np.bincount(owner, minlength=clients).min() >= FEWEST_CANDIDATES:
                break
        return owner

    def _draw(
        self, labels: Int[np.ndarray, " n"], clients: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " n"]:
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            records = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(records)).astype(int)
            for client, part in enumerate(np.split(records, cuts)):
                owner[part] = client
        return owner


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
        self,
        labels: Int[np.ndarray, " n"],
        clients: int,
        rng: np.random.Generator,
        domains: Int[np.ndarray, " n"] | None = None,
    ) -> Int[np.ndarray, " n"]:
        """Return each record's client.

        Raises:
            ConfigError: There are no domains, or clients are no multiple of them.
        """
        owner = np.empty(len(labels), dtype=np.int64)
        for records, those in _spread(domains, clients):
            owner[records] = those[
                Dirichlet(self.alpha).split(labels[records], len(those), rng)
            ]
        return owner


Partition = Pathological | Dirichlet | ByDomain


def _spread(
    domains: Int[np.ndarray, " n"] | None, clients: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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
