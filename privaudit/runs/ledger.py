"""The truth about membership. It meets an attack's scores in the audit, nowhere else.

Each candidate is a member by a fair coin of its own, so members and non-members of a
shard come from one distribution. Records of a group share its coin, and are then one
unit of the audit. Where all candidates are trained on, there is no coin and nothing to
audit.
"""

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Int, Shaped

from privaudit.core.errors import (
    ConfigError,
    LimitError,
    TranscriptError,
    UnknownNameError,
    shown,
)
from privaudit.core.seeds import Seeds
from privaudit.core.storage import DAMAGE, read_bytes, read_npz
from privaudit.datasets.partition import records_by
from privaudit.datasets.split import NOTHING, PUBLIC, TEST, Split
from privaudit.runs.own_files import write_output
from privaudit.statistics.verdict import Sampling

CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TAKEN = ("server", "public", "clients")  # parties that are no clients

Library = Literal["sklearn", "torch", "datasets"]  # whose random split can be repeated
Draw = Literal["seed", "system", "none", "split", "population", Library]
_NO_COINS: Mapping[str, Sampling] = {
    **dict.fromkeys(("split", *get_args(Library)), "split"),
    "population": "population",
    "none": "unknown",
}


@dataclass(frozen=True)
class Coin:
    """How it was decided who is a member.

    Attributes:
        randomness: "seed": tossed with a seed, and who can guess that knows the truth;
            "system": tossed with a key of the system's that nobody kept; "split",
            "population": as :data:`Sampling` says, a library's name: by its split, which
            was repeated with the seed; "none": members and others may differ by more
            than training.
        seed: The seed, if there was one.
    """

    randomness: Draw
    seed: int | None = None


@dataclass(frozen=True)
class CoinUnits:
    """Which of some records share a coin.

    Attributes:
        first: Place of each unit's first record among the records.
        unit: Number of each record's unit, in the order of their first records.
    """

    first: Int[np.ndarray, " units"]
    unit: Int[np.ndarray, " records"]

    def mean(
        self, values: Shaped[np.ndarray, "*models records"]
    ) -> Shaped[np.ndarray, "*models units"]:
        """Return the mean over each unit's records; as it is, where each is alone."""
        if len(self.first) == len(self.unit):
            return values
        sums = np.apply_along_axis(lambda row: np.bincount(self.unit, row), -1, values)
        return sums / np.bincount(self.unit)


@dataclass(frozen=True)
class Ledger:
    """The truth: who owned and who trained on which record. No attack reaches it.

    Attributes:
        owner: As in :class:`Split`.
        is_member: True where the owner trained on it; never for public and test.
        names: Of the clients, by number; none stands for client-0, client-1 and so on.
        group: For each record the position of the first one of its group, which shares
            its coin and its owner; None where each record is alone.
        coin: How members were chosen; None where the run's configuration says it.
        cluster: For each record the position of the first one that it resembles, such
            as one of the same patient, where each had a coin of its own all the same.
    """

    owner: Int[np.ndarray, " n"]
    is_member: Bool[np.ndarray, " n"]
    names: tuple[str, ...] = ()
    group: Int[np.ndarray, " n"] | None = None
    coin: Coin | None = None
    cluster: Int[np.ndarray, " n"] | None = None

    @classmethod
    def toss(cls, split: Split, seeds: Seeds) -> "Ledger":
        """Toss a fair coin for each candidate, or group, if that is the split's rule.

        Raises:
            ConfigError: No client takes part.
        """
        heads = toss_coins(len(split.owner), seeds)
        decides = split.group if split.coins is None else split.coins
        if decides is not None:
            heads = heads[decides]
        if split.members == "all":
            heads[:] = True
        is_member = heads & (split.owner >= 0)
        if split.members == "clients" and not is_member.any():
            raise ConfigError(
                "The coins leave no client to take part. Toss others: run the command "
                "again without --seed or with another, or take more clients."
            )
        return cls(split.owner, is_member, group=split.group)

    @property
    def sampling(self) -> Sampling:
        """How members were chosen; where that is unknown, an audit tells of no membership."""
        drawn = "system" if self.coin is None else self.coin.randomness
        return _NO_COINS.get(drawn, "coin")

    @property
    def tossed(self) -> bool:
        """Whether a coin decided for each record."""
        return self.sampling == "coin"

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The clients' names, by number."""
        count = int(self.owner.max(initial=-1)) + 1
        return self.names or tuple(f"client-{number}" for number in range(count))

    def candidates_of(self, client: int | str) -> Int[np.ndarray, " candidates"]:
        """Return the records of a client, trained on or not.

        Raises:
            UnknownNameError: There is no client of that name or number.
        """
        return self._places.get(self._number(client), NOTHING)

    def members_of(self, client: int | str) -> Int[np.ndarray, " members"]:
        """Return the records that a client trains on, and no others.

        Raises:
            UnknownNameError: There is no such client.
        """
        candidates = self.candidates_of(client)
        return candidates[self.is_member[candidates]]

    @property
    def tests(self) -> Int[np.ndarray, " tests"]:
        """Records to measure utility on."""
        return np.flatnonzero(self.owner == TEST)

    @property
    def public(self) -> Int[np.ndarray, " public"]:
        """Records that belong to nobody: the adversary's for reference."""
        return np.flatnonzero(self.owner == PUBLIC)

    @cached_property
    def _places(self) -> dict[int, Int[np.ndarray, " part"]]:
        return records_by(self.owner)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.clients)}

    def _number(self, client: int | str) -> int:
        if isinstance(client, str) and client in self._numbers:
            return self._numbers[client]
        if isinstance(client, str) or not 0 <= client < len(self.clients):
            raise UnknownNameError("client", str(client), self.clients)
        return int(client)

    def units(self, records: Int[np.ndarray, " records"]) -> CoinUnits:
        """Return which of some records share a coin."""
        if self.group is None:
            return CoinUnits(np.arange(len(records)), np.arange(len(records)))
        _, first, unit = np.unique(
            self.group[records], return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        return CoinUnits(first[order], np.argsort(order)[unit])

    @property
    def hash(self) -> str:
        """The SHA-256 of owners and members; of names, groups and coin where noted."""
        content = self.owner.astype("<i8").tobytes() + self.is_member.tobytes()
        noted = self._noted()
        if noted:  # as text, so that no list of members ends like it
            plain = {name: array.tolist() for name, array in noted.items()}
            content += json.dumps(plain, sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()

    def _noted(self) -> dict[str, np.ndarray]:
        """Return the arrays that ledgers of trained runs do without."""
        noted: dict[str, np.ndarray] = {}
        if self.names:
            noted["clients"] = np.array(self.names)
        if self.group is not None:
            noted["group"] = self.group
        if self.cluster is not None:
            noted["cluster"] = self.cluster
        if self.coin is not None:
            noted["randomness"] = np.array(self.coin.randomness)
            if self.coin.seed is not None:
                noted["seed"] = np.array(self.coin.seed, dtype=np.uint64)
        return noted

    def fits(self, split: Split) -> bool:
        """Say whether the records belong to those whom the split gives them to."""
        same_owners = np.array_equal(self.owner, split.owner)
        if split.group is None or self.group is None:
            return same_owners and split.group is None  # a recording's stand here alone
        return same_owners and np.array_equal(self.group, split.group)

    def save(self, path: str | Path) -> None:
        """Write the ledger as an npz file without objects, for its owner's eyes only.

        The arrays ``owner`` and ``is_member`` are always there, and ``clients``,
        ``group``, ``cluster``, ``randomness`` and ``seed`` where they are noted.

        Raises:
            StorageError: It lies in a run, or the folder cannot be written.
        """
        write_output(Path(path), self.to_bytes(), is_data=True)

    def to_bytes(self) -> bytes:
        """Return the content of the file that :meth:`save` writes."""
        buffer = io.BytesIO()
        arrays = {"owner": self.owner, "is_member": self.is_member, **self._noted()}
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def load(cls, path: str | Path) -> "Ledger":
        """Read a ledger.

        Raises:
            MissingFileError: There is none.
            LimitError: It is larger than a bound.
            TranscriptError: It was cut or altered.
        """
        content = read_bytes(Path(path), "arrays")
        try:
            return _checked(read_npz(content, str(path)))
        except LimitError:
            raise
        except DAMAGE as error:
            raise TranscriptError(
                f"{path} cannot be read ({error}): it was cut or altered. Restore it "
                "from a copy, or train again."
            ) from None


def toss_coins(records: int, seeds: Seeds) -> Bool[np.ndarray, " records"]:
    """Toss a fair coin for each record; who owns it makes no difference."""
    return seeds.stream("membership").coins(0.5, records)


def known_by(seed: int | None) -> str:
    """Say what a seed of coins gives away, and not which it is; empty without one."""
    if seed is None:
        return ""
    return (
        "The coins that choose members follow from the seed: anyone with the data and "
        "this seed knows every member."
    )


def check_client_name(name: str) -> str:
    """Return a client's name.

    Raises:
        ConfigError: It is none: names stand in files, tables and on command lines.
    """
    if not CLIENT_NAME.fullmatch(name) or name in _TAKEN:
        raise ConfigError(
            f"{shown(name)} is no name of a client. Use up to 64 letters, digits, '.', "
            f"'_' and '-', beginning with a letter or digit; {', '.join(_TAKEN)} are "
            "taken."
        )
    return name


def _checked(stored: Mapping[str, np.ndarray]) -> Ledger:
    """Return a ledger of arrays that are of the right form and agree with one another."""
    owner, is_member = stored["owner"], stored["is_member"]
    if owner.ndim != 1 or owner.dtype.kind != "i":
        raise ValueError(f"owner is {owner.dtype} of shape {owner.shape}")
    if not -4 <= owner.min(initial=0) <= owner.max(initial=-1) < max(1, len(owner)):
        raise ValueError(f"owners go from {owner.min()} to {owner.max()}")
    if is_member.shape != owner.shape or is_member.dtype != bool:
        raise ValueError(f"is_member is {is_member.dtype} of shape {is_member.shape}")
    names = _names(stored["clients"], owner) if "clients" in stored else ()
    group, cluster = stored.get("group"), stored.get("cluster")
    if group is not None:
        _check_firsts("group", group, owner)
        _check_groups(group, owner, is_member)
    if cluster is not None:
        _check_firsts("cluster", cluster, owner)
    return Ledger(owner, is_member, names, group, _coin(stored), cluster)


def _names(stored: np.ndarray, owner: np.ndarray) -> tuple[str, ...]:
    if stored.ndim != 1 or stored.dtype.kind != "U":
        raise ValueError(f"clients is {stored.dtype} of shape {stored.shape}")
    names = tuple(map(check_client_name, stored.tolist()))
    if len(set(names)) < len(names) or owner.max(initial=-1) >= len(names):
        raise ValueError(f"{len(names)} clients' names do not fit its owners")
    return names


def _check_firsts(what: str, first: np.ndarray, owner: np.ndarray) -> None:
    """Refuse what are no positions of first records."""
    if first.shape != owner.shape or first.dtype.kind != "i":
        raise ValueError(f"{what} is {first.dtype} of shape {first.shape}")
    if (first < 0).any() or (first > np.arange(len(first))).any():
        raise ValueError(f"{what} names a record that is not the first of its {what}")


def _check_groups(group: np.ndarray, owner: np.ndarray, is_member: np.ndarray) -> None:
    """Hold groups against owners and members: all of a group are alike."""
    if not all(np.array_equal(of[group], of) for of in (group, owner, is_member)):
        raise ValueError("records of one group differ in their owner or membership")


def _coin(stored: Mapping[str, np.ndarray]) -> Coin | None:
    if "randomness" not in stored:
        return None
    said = stored["randomness"].item()
    for known in get_args(Draw):
        if said == known:
            seed = stored.get("seed")
            return Coin(known, None if seed is None else int(seed.item()))
    raise ValueError(f"randomness is {shown(said)}")
