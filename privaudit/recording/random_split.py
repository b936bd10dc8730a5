"""Random splits of fixed size, which libraries made: done again, and checked.

All sets of so many records are equally likely to be the members, so that members and
others are exchangeable, as by a coin each: an AUROC of 0.5 and its interval hold. They are
not independent: where one record is in, another is less likely to be. So no bound on
epsilon from one run is made of them.
"""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, Int, Shaped

from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.lazy_torch import torch
from privaudit.core.limits import check_limit
from privaudit.runs.ledger import Library
from privaudit.statistics.verdict import Sampling


@dataclass(frozen=True)
class RandomSplit:
    """A split in two or more parts, one of which was trained on.

    Attributes:
        library: "sklearn": ``train_test_split(..., random_state=seed)``; "torch":
            ``random_split(..., torch.Generator().manual_seed(seed))``; "datasets":
            Hugging Face's ``Dataset.train_test_split(..., seed=seed)``. None stratified.
        seed: From 0 to 2^32 - 1.
        records: How many were split; 0: as many as are audited.
    """

    library: Library
    seed: int
    records: int = 0

    def check(
        self,
        is_member: Bool[np.ndarray, " records"],
        places: Shaped[np.ndarray, " places"] | None = None,
        client: Int[np.ndarray, " clients"] | None = None,
    ) -> None:
        """Refuse members that are no part of such a split, of all records or of each client's.

        Args:
            is_member: Who was trained on.
            places: Of the records in the data that were split, as numbers or texts; by
                default in order.
            client: Whose each is; each client may have split its own by this seed.

        Raises:
            ConfigError: They are none, or the places are not.
        """
        count = self.records or len(is_member)
        check_limit("records", count, "The split")
        named = range(len(is_member)) if places is None else places
        where = np.array([int(n) if str(n).isdecimal() else -1 for n in named])
        if len({*where}) < len(where) or where.min() < 0 or where.max() >= count:
            raise ConfigError(
                f"A split of {count:,} records was declared, and those given are not "
                "named by their positions in them. Name each so, and say how many were "
                f"split: {self.library}:{self.seed}:RECORDS."
            )
        owns = [] if client is None else [client == one for one in np.unique(client)]
        parts = [is_member[own][np.argsort(where[own])] for own in owns]
        of_each = count == len(is_member) and all(map(self._has_made, parts))
        if not self._has_made(is_member, where, count) and not (parts and of_each):
            raise ConfigError(
                f"The split was done again by {self.library} with seed {self.seed}, of "
                f"{count:,} records and of each client's, and its parts are not these "
                "members and others. Give the seed and the order in which they were "
                "split. A stratified split is not done again: declare it as split."
            )

    def _has_made(
        self,
        is_member: Bool[np.ndarray, " records"],
        places: Int[np.ndarray, " places"] | None = None,
        count: int = 0,
    ) -> bool:
        """Say whether no other record lies between members in the library's order."""
        place = np.argsort(self._order(count or len(is_member)))
        place = place if places is None else place[places]
        inside = place[is_member]
        span = (inside.min(initial=len(place)), inside.max(initial=-1))
        return not ((place > span[0]) & (place < span[1]) & ~is_member).any()

    def _order(self, count: int) -> Int[np.ndarray, " count"]:
        """Return the permutation of which the library's parts are pieces."""
        if self.library == "torch":
            drawn = torch.Generator().manual_seed(self.seed)
            return torch.randperm(count, generator=drawn).numpy()
        if self.library == "datasets":
            return np.random.default_rng(self.seed).permutation(count)
        return np.random.RandomState(self.seed).permutation(count)


def as_sampling(said: Any) -> Sampling | RandomSplit:
    """Return how members were chosen, of one word, or of LIBRARY:SEED[:RECORDS].

    Raises:
        UnknownNameError: It is none of them.

    Example:
        >>> as_sampling("sklearn:42")
        RandomSplit(library='sklearn', seed=42, records=0)
    """
    library, *numbers = str(said).split(":")
    if numbers[:1] and all(n.isdecimal() and int(n) < 2**32 for n in numbers[:2]):
        for known in get_args(Library):
            if library == known and len(numbers) <= 2:
                return RandomSplit(known, *map(int, numbers))
    for word in get_args(Sampling):
        if word == said:
            return word
    libraries = (f"{known}:SEED" for known in get_args(Library))
    raise UnknownNameError("sampling", said, (*get_args(Sampling), *libraries))
