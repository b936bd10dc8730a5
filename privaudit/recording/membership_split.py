"""Membership split before training: who owns which record, and who may train on it.

For federations that are trained elsewhere. Records are set apart for tests and as the
adversary's public ones, the rest are candidates of one client each, and a fair coin makes
each candidate a member. Records of a group, such as one patient's pictures, share their
place and their coin. Columns say whose records are, of which group and class: a value for
each record, from a file or from Python.
"""

import heapq
import math
import re
import secrets
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    LimitError,
    TooFewRecordsError,
    shown,
)
from privaudit.core.limits import check_limit, reading_errors
from privaudit.core.parameters import as_int
from privaudit.core.seeds import KEY, Seeds
from privaudit.core.storage import DAMAGE, map_npy
from privaudit.datasets.partition import FEWEST_CANDIDATES
from privaudit.datasets.split import FEWEST_PUBLIC, PUBLIC, TEST
from privaudit.datasets.tables.blocks import blocks_of
from privaudit.datasets.tables.columns import shown_columns
from privaudit.datasets.text.rows import ENDINGS, read_rows
from privaudit.recording.random_split import RandomSplit, as_sampling
from privaudit.runs.ledger import Coin, Ledger, check_client_name, toss_coins

LONGEST = 200  # letters of a value
_TABLES = (".parquet", ".arrow")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"-?[0-9]*\.[0-9]*")
_MISSING = frozenset(("", "nan", "none", "null", "n/a", "<na>", "nat"))

Values = Iterable[Any]
"""Whole numbers or texts, one for each record: a list, an array, a tensor, a series."""


@dataclass(frozen=True)
class RecordColumn:
    """A value for each record, by number.

    Attributes:
        number: Of each record's value among the distinct ones.
        distinct: Whole numbers, or texts, in their order.
    """

    number: Int[np.ndarray, " records"]
    distinct: tuple[int, ...] | tuple[str, ...]

    def __len__(self) -> int:
        return len(self.number)

    @property
    def first(self) -> Int[np.ndarray, " records"]:
        """For each record, the position of the first one with its value."""
        return np.unique(self.number, return_index=True)[1][self.number]


def number_values(what: str, values: Values) -> RecordColumn:
    """Number the distinct values of a column; texts that are whole numbers count as such."""
    found, number = _distinct(what, values)
    plain: list[Any] = [_plain(what, one) for one in found]
    if any(isinstance(one, str) for one in plain):
        plain = [str(one) for one in plain]
    distinct = tuple(sorted(set(plain)))
    place = {one: place for place, one in enumerate(distinct)}
    return RecordColumn(np.array([place[p] for p in plain], int)[number], distinct)


def _distinct(
    what: str, values: Values
) -> tuple[Sequence[Any], Int[np.ndarray, " records"]]:
    """Return the distinct values, in any order, and which of them each record has."""
    array = np.asarray(values) if hasattr(values, "__array__") else None
    if array is not None and array.ndim != 1:
        raise ConfigError(
            f"The {what} are an array of shape {array.shape}. Give one value for each "
            "record."
        )
    if array is not None and array.dtype.kind in "biufU":
        found, number = np.unique(array, return_inverse=True)
        return found.tolist(), number
    places: dict[Hashable, int] = {}
    try:
        listed = values if array is None else array.tolist()
        order = [places.setdefault(one, len(places)) for one in listed]
    except TypeError:  # no list, or one of lists
        raise ConfigError(
            f"The {what} are {shown(values)}. Give a list of one whole number or text "
            "for each record."
        ) from None
    return list(places), np.array(order, int)


def _plain(what: str, value: object) -> int | str:
    """Return a value as a whole number or a text."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):  # also True and False
        return int(number)
    text = number.strip() if isinstance(number, str) else None
    if text is not None and _WHOLE.fullmatch(text):
        return int(text)
    missing = number is None or (isinstance(number, float) and math.isnan(number))
    if missing or (text is not None and text.lower() in _MISSING):
        raise ConfigError(
            f"The {what} hold {shown(value)} where a value is missing. Fill it in, or "
            "take the record out of data and columns."
        )
    if text is None or _DECIMAL.fullmatch(text) or len(text) > LONGEST:
        raise ConfigError(
            f"The {what} hold {shown(value)}. Use whole numbers, or texts of at most "
            f"{LONGEST} letters."
        )
    return text


def read_column(option: str, source: str) -> Values:
    """Read FILE or FILE:COLUMN, a value for each record in the file's order.

    Args:
        option: Its name, for errors.
        source: A .npy file of one dimension, or a table (.csv, .tsv, .jsonl, .parquet,
            .arrow), of which the column must be named if there are several.

    Raises:
        MissingFileError: There is no such file.
        DatasetError: It is no such file or damaged, or has no such column.
        LimitError: It is larger than a bound.
    """
    whole = ":" not in source or Path(source).is_file()
    file, _, named = (source, "", "") if whole else source.rpartition(":")
    path, column = Path(file), named or None
    if path.suffix == ".npy":
        return _npy(option, path, column)
    if path.suffix in _TABLES:
        return _table(option, path, column)
    if path.suffix.lower() in ENDINGS:
        return _rows(option, path, column)
    raise DatasetError(
        f"{option} {shown(source)} is no file that is read: those end in "
        f"{', '.join(('.npy', *ENDINGS, *_TABLES))}, with :COLUMN behind it for a column "
        "of a table. Write it as one of these."
    )


def _npy(option: str, path: Path, column: str | None) -> np.ndarray:
    if column is not None:
        raise DatasetError(
            f"{option} names the column {shown(column)} of {path}, and an array has no "
            "columns. Leave it out."
        )
    try:
        with reading_errors(path):
            mapped = map_npy(path)
        check_limit("records", mapped.size, str(path))
        check_limit("arrays", mapped.nbytes, str(path))
        return np.array(mapped)
    except LimitError:
        raise
    except DAMAGE as error:
        raise DatasetError(
            f"{path} cannot be read ({error}): it is damaged, or no array of numbers or "
            "texts. Write it with numpy.save."
        ) from None


def _table(option: str, path: Path, column: str | None) -> list[Any]:
    blocks = blocks_of(path)
    if not blocks:
        return []
    schema = blocks[0].schema
    name = _one_of(option, path, column, schema.names)
    kind = str(schema.field(name).type)
    if not kind.startswith(("int", "uint", "string", "large_string", "bool")):
        raise DatasetError(
            f"{option}: {path} has the columns {shown_columns(schema)}, and {name} is "
            "neither of whole numbers nor of texts. Name another, or write it as such."
        )
    return [one for b in blocks for one in b.read([name]).column(name).to_pylist()]


def _rows(option: str, path: Path, column: str | None) -> list[str]:
    values: list[str] = []
    name = column
    for row in read_rows(path):
        if name is None or not values:
            name = _one_of(option, path, column, list(row.fields))
        value = row.take(name)
        if len(value) > LONGEST:
            raise DatasetError(
                f"{row.where} holds {shown(value)} under {name}. Use whole numbers, or "
                f"texts of at most {LONGEST} letters."
            )
        values.append(value)
    return values


def _one_of(option: str, path: Path, column: str | None, names: Sequence[str]) -> str:
    """Return the column that is meant, which must be there."""
    if column in names:
        return str(column)
    if column is None and len(names) == 1:
        return names[0]
    missing = "no column is named" if column is None else f"none is {shown(column)}"
    raise DatasetError(
        f"{option}: {path} has the columns {', '.join(names)}, and {missing}. Write "
        f"{path}:{names[0] if names else 'COLUMN'}."
    )


TESTS, REFERENCES = 0.1, 0.2  # shares where nothing else is said


def split_membership(
    records: int | None = None,
    clients: int | None = None,
    *,
    owners: Values | None = None,
    groups: Values | None = None,
    labels: Values | None = None,
    members: Any = None,
    sampling: str = "unknown",
    test_share: float = TESTS,
    public_share: float | None = None,
    seed: int | None = None,
) -> Ledger:
    """Decide who owns each record and who trains on it, before anybody trains.

    Each client trains on ``ledger.members_of(client)`` alone; its other candidates are
    used for nothing. The coin of a record depends on its position and the seed, not on
    owners, labels or other records' groups.

    Args:
        records: How many there are; may be left out where a column says it.
        clients: How many get equal numbers of candidates at random, in place of owners.
        owners: For each record whose it is, such as a hospital or a writer: a name, or a
            whole number n, which names client-n. Clients are numbered in the order of
            their names. Tests and public records are taken from every owner alike.
        groups: For each record a name or number that records share which stay together,
            such as a patient's: all of a group are members, or none is. The audit then
            counts groups. Shares are shares of groups.
        labels: For each record its class: each class is then spread over clients, tests
            and public records in equal shares. The coin is fair whatever the class.
        members: Where training has been, and no coin was tossed: 0 or 1 for each record,
            the positions of those trained on, or what torch's ``random_split`` or
            Hugging Face's ``train_test_split`` returned of them. Tests and public records
            are taken from the others.
        sampling: How these were chosen, by a word or library and seed as
            :func:`privaudit.recording.random_split.as_sampling` takes them; of all
            records, or of each owner's by itself. An audit gives no verdict of membership
            where it is unknown.
        test_share: Of the records that may be set apart, in (0, 1): kept for utility.
        public_share: Likewise in [0, 1): the adversary's reference records, at least 10.
            By default 0.2, or none where that is fewer. Without any, candidates are
            compared with one another.
        seed: Repeats the split and the coins. Who can guess it knows the truth: by
            default both come of a key of the system's, which is not kept.

    Raises:
        ConfigError: Columns are not of the records' number, a value is missing or no
            name, records of one group have several owners, or options do not fit.
        TooFewRecordsError: A client would have fewer than two candidates, or two groups,
            a group is larger than a client's share, or too few public ones are left.
        LimitError: There are more records than the bound.

    Example:
        >>> ledger = split_membership(1000, 4, seed=7)
        >>> ledger.clients
        ('client-0', 'client-1', 'client-2', 'client-3')
        >>> len(ledger.candidates_of("client-3")), len(ledger.members_of("client-3"))
        (175, 80)
    """
    records, clients, seed = map(as_int, (records, clients, seed))
    columns = {"owners": owners, "groups": groups, "labels": labels}
    numbered = {n: number_values(n, v) for n, v in columns.items() if v is not None}
    members = None if members is None else _positions(members)
    count = _count(records, numbered, members)
    trained = None if members is None else _trained(members, count)
    client_count = _client_count(
        clients, count, "owners" in numbered, members is not None
    )
    draw, units = seeds_of(seed), _units(count, numbered, trained)
    shares = _checked_shares(test_share, public_share, int(units.free.sum()))
    places = _place(units, client_count, shares, draw.stream("split").numpy())
    owner, names = places[units.of], _names(numbered)
    group = numbered["groups"].first if "groups" in numbered else None
    _refuse_few(units, places, names, len(names) or client_count, shares[1])
    if trained is not None:
        _refuse_one_sided(trained, owner)
        whose = numbered["owners"].number if "owners" in numbered else None
        return Ledger(owner, trained, names, group, drawn_by(sampling, trained, whose))
    if sampling not in ("unknown", "coin"):
        raise ConfigError(
            f"The sampling {shown(sampling)} was given, and no members: here the coin "
            "chooses them. Give the members of that split, or leave it out."
        )
    heads = toss_coins(count, draw)
    is_member = (heads if group is None else heads[group]) & (owner >= 0)
    coin = Coin("system") if seed is None else Coin("seed", seed)
    return Ledger(owner, is_member, names, group, coin)


@dataclass(frozen=True)
class _Units:
    """What is placed as one: a record, or a group of them.

    Attributes:
        of: The unit of each record.
        size: How many records each has.
        owner: Whose each is; None where clients get them at random.
        label: Class of its first record; 0 where there are no classes.
        free: Whether it may be set apart: nobody trained on it.
    """

    of: Int[np.ndarray, " records"]
    size: Int[np.ndarray, " units"]
    owner: Int[np.ndarray, " units"] | None
    label: Int[np.ndarray, " units"]
    free: Bool[np.ndarray, " units"]


def _units(
    count: int,
    numbered: Mapping[str, RecordColumn],
    trained: Bool[np.ndarray, " records"] | None,
) -> _Units:
    """Return groups, or records as units of their own."""
    first = np.arange(count)
    owner = numbered["owners"].number if "owners" in numbered else None
    if "groups" in numbered:
        first = numbered["groups"].first
        for what, values in (("owners", owner), ("members", trained)):
            if values is not None and (torn := values[first] != values).any():
                record = int(torn.argmax())
                group = numbered["groups"].distinct[numbered["groups"].number[record]]
                raise ConfigError(
                    f"Records {int(first[record])} and {record} are of the group "
                    f"{shown(group)}, and differ in their {what}. A group is one "
                    "client's, and in training as a whole or not at all: correct the "
                    "columns, or give smaller groups."
                )
    firsts, of, size = np.unique(first, return_inverse=True, return_counts=True)
    label = numbered["labels"].number if "labels" in numbered else np.zeros_like(first)
    free = np.ones(count, bool) if trained is None else ~trained
    own = None if owner is None else owner[firsts]
    return _Units(of, size, own, label[firsts], free[firsts])


def _place(
    units: _Units, clients: int, shares: tuple[float, float], rng: np.random.Generator
) -> Int[np.ndarray, " units"]:
    """Return each unit's place: a client's number, ``TEST`` or ``PUBLIC``.

    Units are put in order by owner and class, and at random within, so that every n-th
    of them is one of equal shares of all owners and classes.
    """
    count, (tests, public) = len(units.size), shares
    owner = np.zeros(count, int) if units.owner is None else units.owner
    order = np.lexsort((rng.permutation(count), units.label, owner))
    places = owner.copy()
    free = order[units.free[order]]
    is_test = _every(tests, len(free), rng)
    places[free[is_test]] = TEST
    rest = free[~is_test]
    places[rest[_every(public / (1 - tests), len(rest), rng)]] = PUBLIC
    if units.owner is None and clients > 1:
        candidates = order[places[order] >= 0]
        places[candidates] = _assign(units.size[candidates], clients)
    return places


def _every(
    share: float, count: int, rng: np.random.Generator
) -> Bool[np.ndarray, " count"]:
    """Choose a share of what stands in order, evenly along it, from a random start.

    Source: Madow and Madow, "On the theory of systematic sampling", Annals of
    Mathematical Statistics 15 (1944).
    """
    steps = np.floor(np.arange(count + 1) * share + rng.random())
    return np.diff(steps) > 0


def _assign(
    sizes: Int[np.ndarray, " units"], clients: int
) -> Int[np.ndarray, " units"]:
    """Assign units in their order, each to the client with the fewest records so far."""
    if (sizes == 1).all():
        return np.arange(len(sizes)) % clients
    share = -(-int(sizes.sum()) // clients)
    if sizes.max() > share:
        raise TooFewRecordsError(
            f"A group has {int(sizes.max()):,} records, and the {int(sizes.sum()):,} "
            f"candidates of {clients:,} clients are {share:,} for each. Take fewer "
            "clients or smaller groups, or say whose records they are (owners)."
        )
    held = [(0, client) for client in range(clients)]
    client_of = np.empty(len(sizes), int)
    for unit, size in enumerate(sizes.tolist()):
        records, client_of[unit] = held[0]
        heapq.heapreplace(held, (records + size, int(client_of[unit])))
    return client_of


def _count(
    records: int | None, numbered: Mapping[str, RecordColumn], members: Values | None
) -> int:
    """Return how many records there are."""
    said = {"records": records} if records is not None else {}
    said |= {name: len(column) for name, column in numbered.items()}
    if not said and members is not None:
        said["members"] = len(number_values("members", members))
    if not said:
        raise ConfigError(
            "How many records there are was not said. Give records, or a column of them."
        )
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in said.items())
        raise ConfigError(
            f"The numbers of records differ: {listed}. Give a value for each record."
        )
    count = next(iter(said.values()))
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"{shown(count)} records were given. Give 1 at least.")
    check_limit("records", count, "The data set")
    return count


def _trained(members: Values, count: int) -> Bool[np.ndarray, " records"]:
    """Return who was trained on, of 0 and 1 for each record, or of positions."""
    column = number_values("members", members)
    words = {"True": 1, "False": 0}
    values = [words.get(str(one), one) for one in column.distinct]
    if len(column) == count and set(values) <= {0, 1}:
        return np.array(values)[column.number] == 1
    odd = [v for v in values if not (isinstance(v, int) and 0 <= v < count)]
    if odd or len(values) < len(column):
        what = shown(odd[0]) if odd else "a position twice"
        raise ConfigError(
            f"The members hold {what}. Give 0 or 1 for each of the {count:,} records, or "
            f"positions from 0 to {count - 1:,}, each once."
        )
    trained = np.zeros(count, bool)
    trained[np.array(values, int)] = True
    return trained


def _positions(members: Any) -> Values:
    """Return positions of torch's Subset or Hugging Face's Dataset; others as they are."""
    chosen = getattr(members, "_indices", None)  # a table of one column
    if chosen is not None:
        return list(chosen.column(0).to_pylist())
    return getattr(members, "indices", members)


def drawn_by(
    sampling: str,
    is_member: Bool[np.ndarray, " records"],
    client: Int[np.ndarray, " records"] | None = None,
    places: Shaped[np.ndarray, " records"] | None = None,
) -> Coin:
    """Return how members were chosen, where a coin is not on record.

    Raises:
        ConfigError: A library's split is declared that did not choose them.
    """
    said = as_sampling(sampling)
    if isinstance(said, RandomSplit):
        said.check(is_member, places, client)
        return Coin(said.library, said.seed)
    if said == "coin":
        raise ConfigError(
            "A coin was declared for members that were chosen before. Declare their "
            "random split, or toss the coin here before training."
        )
    return Coin("none" if said == "unknown" else said)


def _client_count(clients: int | None, records: int, owned: bool, known: bool) -> int:
    """Return among how many clients records are split at random; 1 for none."""
    if owned and clients is not None:
        raise ConfigError(
            "Owners and a number of clients were given, and each owner is a client. Give "
            "one of both."
        )
    if clients is None and (owned or known):
        return 1
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise ConfigError(
            f"{'No' if clients is None else shown(clients)} clients were given. Give a "
            "number from 1 on, or owners: for each record whose it is."
        )
    if known and clients > 1:
        raise ConfigError(
            f"Members of {clients:,} clients were given, and not who trained on which "
            "record. Give owners: for each record whose it is."
        )
    if clients * FEWEST_CANDIDATES > records:  # before anything is drawn for each
        raise TooFewRecordsError(
            f"{clients:,} clients were given, and the {records:,} records are fewer than "
            f"{FEWEST_CANDIDATES} for each. Take fewer clients."
        )
    return clients


def _checked_shares(
    tests: float, public: float | None, free: int
) -> tuple[float, float]:
    usual = REFERENCES if free * REFERENCES >= FEWEST_PUBLIC else 0.0
    references = usual if public is None else public
    if not (0 < tests < 1 and 0 <= references < 1 and tests + references < 1):
        raise ConfigError(
            f"A test share of {tests:g} and a public share of {references:g} were given. "
            "Use shares above 0 (the public one may be 0) whose sum is below 1."
        )
    return tests, references


def seeds_of(seed: int | None) -> Seeds:
    """Return where coins come from: a seed, or a key of the system's."""
    if seed is None:
        return Seeds.of_key(secrets.token_bytes(KEY))
    seed = as_int(seed)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ConfigError(
            f"The seed {shown(seed)} was given. Use a whole number from 0 to 2^64 - 1, "
            "or none."
        )
    return Seeds(seed)


def _names(numbered: Mapping[str, RecordColumn]) -> tuple[str, ...]:
    """Return what owners are called: 3 is client-3."""
    owners = numbered["owners"].distinct if "owners" in numbered else ()
    names = []
    for one in owners:
        if isinstance(one, int) and one < 0:
            raise ConfigError(
                f"The owners hold {one}, and every record has one, from 0 on. Take out "
                "records that are nobody's: tests and public ones are drawn here."
            )
        names.append(f"client-{one}" if isinstance(one, int) else one)
    return tuple(map(check_client_name, names))


def _refuse_few(
    units: _Units,
    places: Int[np.ndarray, " units"],
    names: Sequence[str],
    clients: int,
    public_share: float,
) -> None:
    """Refuse clients without enough candidates, and too few tests or public records."""
    kind = "candidates" if len(units.size) == len(units.of) else "groups of candidates"
    counts = np.bincount(places[places >= 0], minlength=clients)
    fewest = int(counts.argmin())
    if counts[fewest] < FEWEST_CANDIDATES:
        raise TooFewRecordsError(
            f"{names[fewest] if names else f'client-{fewest}'} of {clients:,} clients got "
            f"{int(counts[fewest])} {kind}, and at least {FEWEST_CANDIDATES} are needed to "
            "tell members from others. Take fewer clients or smaller shares, join small "
            "owners, or leave them out."
        )
    tests, public = (int(units.size[places == one].sum()) for one in (TEST, PUBLIC))
    if tests < 1 or (public_share and public < FEWEST_PUBLIC):
        raise TooFewRecordsError(
            f"{tests} records are left for tests and {public} public ones, and 1 and "
            f"{FEWEST_PUBLIC} are needed at least. Raise the shares, bring more records, "
            "or take a public share of 0."
        )


def _refuse_one_sided(
    is_member: Bool[np.ndarray, " records"], owner: Int[np.ndarray, " records"]
) -> None:
    if is_member[owner >= 0].all() or not is_member.any():
        raise ConfigError(
            f"{int(is_member.sum()):,} of {int((owner >= 0).sum()):,} candidates were "
            "trained on, so that none are left to compare with. Give records of both "
            "kinds, or smaller shares."
        )
