"""Split of a data set: who owns each record, before anybody trains.

Every record is one of: a *test* record (utility), a *public* one (the adversary's
shadows), a *candidate* of one client, or, with few shots, unused. Records of one patient,
captions of one picture and copies of a photograph resemble one another: who has seen one
knows the others, so that a group of them is one unit, shares a coin and counts once.
Candidates that a run does without are named by their positions.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.core.errors import ConfigError, DatasetError, TooFewRecordsError, shown
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.limits import most
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import (
    TEST_SPLIT,
    VALIDATION,
    Dataset,
    FeatureBank,
    Texts,
)
from privaudit.datasets.partition import FEWEST_CANDIDATES, Partition, records_by
from privaudit.datasets.partition import (
    UNUSED as UNUSED,  # stands beside the other owners
)

PUBLIC, TEST, SEEN = -1, -2, -4  # owners that are not clients, beside UNUSED
FEWEST_PUBLIC = 10  # shadow models train on half of them, and are judged on the rest
TEST_SHARE, PUBLIC_SHARE = 0.3, 0.4  # where nothing else is said
NOTHING = np.zeros(0, dtype=np.int64)

MembershipSampling = Literal["coin", "all", "clients"]


@dataclass(frozen=True)
class Split:
    """Who owns each record; who is a member stands in the ledger alone.

    Attributes:
        owner: A client's number, ``PUBLIC``, ``TEST``, ``UNUSED``, or ``SEEN`` by the
            model and left out.
        members: The rule, which everybody knows: a fair coin makes each candidate a
            member, or each client with all of its candidates, or all of them are.
        group: For each record the position of the first one that shares its coin and
            its owner; None where each is alone.
        coins: For each record the position of the one whose coin it has, where that is
            not the group's first: it may be left out.
    """

    owner: Int[np.ndarray, " n"]
    members: MembershipSampling = "coin"
    group: Int[np.ndarray, " n"] | None = None
    coins: Int[np.ndarray, " n"] | None = None

    def of(self, owner: int) -> Int[np.ndarray, " part"]:
        """Return the records of one owner, in the data set's order."""
        return self._places.get(owner, NOTHING)

    @cached_property
    def _places(self) -> dict[int, Int[np.ndarray, " part"]]:
        return records_by(self.owner)


@dataclass(frozen=True)
class SplitSizes:
    """Which records are set apart before clients get theirs, and how many of the rest.

    Attributes:
        test: Part kept for utility, in (0, 1); None is the data set's own test part,
            or 0.3 where it has none.
        public: Part that belongs to nobody, in (0, 1), or 0 where all candidates are
            members; None is the data set's own validation part, or 0.4 where it has
            none. Where the test part is the data set's own, a share is one of all
            other records.
        shots: Candidates of each class, drawn at random; None keeps all.
        members: Which candidates are trained on.
    """

    test: float | None = None
    public: float | None = None
    shots: int | None = None
    members: MembershipSampling = "coin"


def split_records(
    labels: Int[np.ndarray, " n"],
    partition: Partition,
    shares: SplitSizes,
    *,
    clients: int,
    seeds: Seeds,
    split: Int[np.ndarray, " n"] | None = None,
    domains: Int[np.ndarray, " n"] | None = None,
    known: Int[np.ndarray, " known"] | None = None,
    group: Int[np.ndarray, " n"] | None = None,
) -> Split:
    """Split records into test, public and the clients' candidates.

    ``split`` are the data set's own parts. Records that the model has seen are ``known``
    by their positions: they are public, or left out where a share of public ones is
    asked for, since an adversary's own records should look to the model as the
    candidates do.

    ``group`` is for each record the position of the first one of its group; None splits
    single records. A group stands for its first record: it is of that class and that
    part of the data set's own, and shares, shots and sizes count groups. It is known to
    the model if one of its records is.

    Raises:
        TooFewRecordsError: The shares leave no candidates, no test record or hardly a public
            one, or a client would have too few.
        DatasetError: Records of one group are of several domains.
    """
    if group is not None:
        if domains is not None and (torn := domains != domains[group]).any():
            record = int(torn.argmax())
            raise DatasetError(
                f"Records {int(group[record])} and {record} are of one group, and of "
                "two owners or domains. A group is one client's: correct the column, "
                "or leave --groups out."
            )
        first, of = np.unique(group, return_inverse=True)
        of_groups = split_records(
            labels[first],
            partition,
            shares,
            clients=clients,
            seeds=seeds,
            split=None if split is None else split[first],
            domains=None if domains is None else domains[first],
            known=None if known is None else np.unique(of[known]),
        )
        return Split(of_groups.owner[of], shares.members, group)
    if clients * FEWEST_CANDIDATES > len(labels):  # before anything is drawn for each
        raise TooFewRecordsError(
            f"{clients:,} clients were requested, but the {len(labels):,} records are "
            f"fewer than {FEWEST_CANDIDATES} for each. Take fewer clients."
        )
    rng = seeds.stream("deal").numpy()
    owner = _set_apart(len(labels), shares, clients, split, known, rng)
    rest = np.flatnonzero(owner == UNUSED)
    if shares.shots is not None:
        mixed = rng.permutation(rest)
        of_classes = (mixed[labels[mixed] == label] for label in np.unique(labels))
        rest = np.sort(np.concatenate([few[: shares.shots] for few in of_classes]))
    parts = None if domains is None else domains[rest]
    owner[rest] = partition.split(labels[rest], clients, rng, parts)
    refuse_empty(owner, clients)
    return Split(owner, shares.members)


def _set_apart(
    records: int,
    shares: SplitSizes,
    clients: int,
    split: Int[np.ndarray, " n"] | None,
    known: Int[np.ndarray, " known"] | None,
    rng: np.random.Generator,
) -> Int[np.ndarray, " n"]:
    """Return the owners of test and public records; all others are unused as yet."""
    order = rng.permutation(records)
    owner = np.full(records, UNUSED)
    own_test = _part(split, TEST_SPLIT, shares.test, records)
    own_public = _part(split, VALIDATION, shares.public, records)
    owner[own_test], owner[own_public] = TEST, PUBLIC
    if known is not None:
        owner[known] = PUBLIC if shares.public is None else SEEN
    test = TEST_SHARE if shares.test is None else shares.test
    test = 0.0 if own_test.any() else test
    public = PUBLIC_SHARE if shares.public is None else shares.public
    public = 0.0 if own_public.any() else public
    refuse_no_public(shares.public, shares.members)
    given = [one for one in (shares.test, shares.public or None) if one is not None]
    if clients < 1 or min(given, default=1) <= 0 or test + public >= 1:
        raise TooFewRecordsError(
            f"{clients} clients, a test share of {test:g} and a public share of "
            f"{public:g} leave no candidates. Use at least one client, and "
            "shares above 0 whose sum is below 1."
        )
    base = records - int(own_test.sum())
    for share, one in ((test, TEST), (public, PUBLIC)):
        free = order[owner[order] == UNUSED]
        wanted = round(share * base) - int((owner == one).sum())
        owner[free[: max(0, wanted if share else 0)]] = one
    tests, publics = int((owner == TEST).sum()), int((owner == PUBLIC).sum())
    _refuse_tiny(tests, publics, records, shares)
    return owner


def _part(
    split: Int[np.ndarray, " n"] | None, part: int, share: float | None, records: int
) -> Bool[np.ndarray, " n"]:
    """Say which records are a part of the data set's own, where no share was given."""
    if split is None or share is not None:
        return np.zeros(records, dtype=bool)
    return split == part


def refuse_no_public(public: float | None, members: MembershipSampling) -> None:
    """Refuse to leave an adversary without records where there is one."""
    if public == 0 and members != "all":
        raise TooFewRecordsError(
            f"public_share = 0 was requested with members = {members!r}. Attacks need "
            "reference records that no client has: give a share above 0, or take "
            'members = "all" (--members all), which rules attacks out.'
        )


def _refuse_tiny(tests: int, publics: int, records: int, shares: SplitSizes) -> None:
    fewest = 0 if shares.public == 0 else FEWEST_PUBLIC
    if tests < 1 or publics < fewest:
        raise TooFewRecordsError(
            f"The shares of {records} records leave {tests} for tests and {publics} "
            f"public ones, and 1 and {fewest} are needed at least. Raise "
            "test_share or public_share."
        )


def refuse_empty(owner: Int[np.ndarray, " n"], clients: int) -> None:
    """Refuse a client with too few candidates."""
    counts = np.bincount(owner[owner >= 0], minlength=clients)
    if counts.min() < FEWEST_CANDIDATES:
        raise TooFewRecordsError(
            f"Client {int(counts.argmin())} of {clients} got {int(counts.min())} "
            f"candidates of {int(counts.sum()):,}, and at least {FEWEST_CANDIDATES} are "
            "needed to tell members from others. Use fewer clients, more shots, or "
            "smaller parts for tests and public records."
        )


CONTENTS, NEAR = "contents", "near-duplicates"
SIDE = 16  # of a thumbnail, in pixels
ALIKE = 0.98  # cosine of two thumbnails' deviations from their means
MOST_COMPARED = 50_000  # records: each is compared with every other
_ROWS = 64


def group_records(dataset: Dataset, wanted: str) -> Int[np.ndarray, " n"]:
    """Return for each record the position of the first one of its group.

    Args:
        dataset: Its ``groups`` are those of a column that was named.
        wanted: "contents" puts records of one picture, or one text, together, whatever
            is asked or said about it; "near-duplicates" also pictures that look alike
            at a size of 16 x 16, such as copies of another size; else a column.
    """
    if wanted == CONTENTS:
        return first_of(np.array([one.hex() for one in dataset.images.contents]))
    if wanted == NEAR:
        return near_duplicates(dataset)
    assert dataset.groups is not None  # a reader that takes columns has read it
    return first_of(dataset.groups.numpy())


def first_of(names: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return for each record the position of the first one of its name."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def near_duplicates(dataset: Dataset) -> Int[np.ndarray, " n"]:
    """Return groups of pictures that are linked by pairs that look alike.

    Thumbnails are whole numbers and their sums exact in float64, so that every machine
    finds the same groups: the ledger holds them, and is held against them.
    """
    from scipy.sparse import coo_matrix  # slow to import, as is csgraph
    from scipy.sparse.csgraph import connected_components

    images, count = dataset.images, len(dataset)
    if isinstance(images, FeatureBank | Texts):
        raise DatasetError(
            f"Groups of {NEAR} were requested, and the data set has no pictures. Use "
            f"--groups {CONTENTS}, or a column of its table."
        )
    if count > MOST_COMPARED:
        raise TooFewRecordsError(
            f"Groups of {NEAR} were requested of {count:,} records, and at most "
            f"{MOST_COMPARED:,} are compared with one another. Use --groups {CONTENTS}, "
            "or write groups into a column."
        )
    small = np.stack([thumbnail(images[n]) for n in range(count)])
    norms, group = (small**2).sum(axis=1), np.arange(count)
    for start in range(0, count, _ROWS):
        rows, later = slice(start, start + _ROWS), group[start:]
        scale = np.sqrt(norms[rows, None] * norms[start:])
        alike = small[rows] @ small[start:].T >= ALIKE * scale
        alike &= scale > 0  # all of one colour: nothing to compare
        left, right = np.nonzero(alike)
        # Links of groups, each once: those of records go by the square of a group.
        links = np.divmod(np.unique(later[left] * count + later[right]), count)
        found = coo_matrix((np.ones(len(links[0]), bool), links), (count, count))
        group = first_of(connected_components(found, directed=False)[1][group])
    return group


def thumbnail(
    picture: Shaped[Tensor, "channels height width"],
) -> Float[np.ndarray, " pixels"]:
    """Return a small grey picture as whole numbers around 0.

    Each pixel is the mean over a rectangle, in 255ths, less the mean of all of them,
    times their number.
    """
    levels = picture if picture.dtype == torch.uint8 else (255 * picture).round()
    grey = levels.to(torch.int64).sum(dim=0).numpy()
    sums = np.zeros((grey.shape[0] + 1, grey.shape[1] + 1), np.int64)
    sums[1:, 1:] = grey.cumsum(axis=0).cumsum(axis=1)
    (top, bottom), (left, right) = (_edges(size) for size in grey.shape)
    total = sums[bottom][:, right] - sums[top][:, right]
    total = total - sums[bottom][:, left] + sums[top][:, left]
    area = (bottom - top)[:, None] * (right - left) * len(picture)
    means = (total // area).ravel()
    centred: Float[np.ndarray, " pixels"] = len(means) * means.astype(np.float64)
    return centred - means.sum()


def _edges(size: int) -> tuple[Int[np.ndarray, " side"], Int[np.ndarray, " side"]]:
    """Return where the rows, or columns, of each pixel of a thumbnail begin and end."""
    begin = np.arange(SIDE) * size // SIDE
    return begin, np.maximum(begin + 1, np.arange(1, SIDE + 1) * size // SIDE)


_RANGES = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*", re.ASCII)


def read_positions(text: str) -> Int[np.ndarray, " positions"]:
    """Return positions in their order, of a text such as "3,17,20-25".

    Raises:
        ValueError: It is none, a range goes down, or there are too many.

    Example:
        >>> read_positions("20-22,3").tolist()
        [3, 20, 21, 22]
    """
    if not _RANGES.fullmatch(text):
        raise ValueError(
            f"use positions and ranges of them, as 3,17,20-25, not {shown(text)}"
        )
    ranges = [tuple(map(int, one.split("-"))) for one in text.split(",")]
    sizes = [one[-1] - one[0] + 1 for one in ranges]
    if min(sizes) < 1 or sum(sizes) > most("records"):
        raise ValueError(f"a range goes down, or there are too many, in {shown(text)}")
    return np.unique(np.concatenate([np.arange(o[0], o[-1] + 1) for o in ranges]))


def write_positions(positions: Int[np.ndarray, " positions"]) -> str:
    """Return the shortest text of one or more positions for :func:`read_positions`.

    Example:
        >>> write_positions(np.array([22, 3, 20, 21]))
        '3,20-22'
    """
    ordered = np.unique(positions)
    cuts = np.flatnonzero(np.diff(ordered) > 1) + 1
    parts = [(int(p[0]), int(p[-1])) for p in np.split(ordered, cuts)]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def leave_out(split: Split, positions: Int[np.ndarray, " positions"]) -> Split:
    """Return a split in which some candidates, with their groups, are nobody's.

    All others stay whose they were, and keep their coins, which follow positions.
    """
    count = len(split.owner)
    there = positions[positions < count]
    odd = np.concatenate([positions[positions >= count], there[split.owner[there] < 0]])
    if len(odd):
        raise ConfigError(
            f"Record {odd[0]} was to be left out (--without), and is no client's "
            f"candidate among the {count:,} records of this split. Name candidates of a "
            "run with the same data, seed and partition."
        )
    owner = split.owner.copy()
    if split.group is not None:
        there = np.flatnonzero(np.isin(split.group, split.group[there]))
    owner[there] = UNUSED
    return replace(split, owner=owner)
