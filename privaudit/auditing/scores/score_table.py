"""One score for each record beside the truth, as somebody else computed them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.auditing.model_outputs import Array, as_array
from privaudit.core.errors import ConfigError, shown
from privaudit.statistics.delong import checked_scores

EVERYBODY, EVERYTHING = "all records", "all classes"  # where no group is named
MOST_GROUPS = 1000  # a picture has a row for each client
LONGEST = 200  # characters of a name
LARGEST = 1e100  # of what is known without the model: squares stay finite

Names = Shaped[Array, "..."] | Sequence[Any]


@dataclass(frozen=True)
class ScoreTable:
    """Scores, the truth, and what each record belongs to.

    Attributes:
        scores: Higher means more likely a member.
        client: Position of each record's client in ``clients``.
        label: Position of each record's class in ``classes``.
        clients: Names, in order.
        classes: Names, in order.
        group: For each record the position of the first one that shares its coin; None
            where each has its own.
        cluster: Likewise of the first one of its group, where groups hold members and
            others: each record had a coin, and intervals count what groups share.
        known: Numbers of each record that hold nothing of the trained model, such as a
            score before training; None where none are given.
        names_hash: SHA-256 of what the records are called and belong to, without scores
            and truth: tables that share it have the same records in the same order.
            Empty where records have no names.
    """

    scores: Float[np.ndarray, " records"]
    is_member: Bool[np.ndarray, " records"]
    client: Int[np.ndarray, " records"]
    label: Int[np.ndarray, " records"]
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    group: Int[np.ndarray, " records"] | None
    known: Float[np.ndarray, "records columns"] | None
    names_hash: str
    cluster: Int[np.ndarray, " records"] | None = None

    @classmethod
    def of(
        cls,
        scores: Shaped[np.ndarray, "..."],
        is_member: Bool[np.ndarray, "..."],
        clients: Names | None = None,
        classes: Names | None = None,
        records: Names | None = None,
        groups: Names | None = None,
        *,
        known: Shaped[Array, "..."] | None = None,
    ) -> "ScoreTable":
        """Return a checked table, ordered by the records' names if they have any.

        Raises:
            ConfigError: A score is not finite, members or non-members are missing,
                columns differ in length, a name is none, a record of a client stands
                there twice, a group has records of several clients, or what is known
                of records is no finite number.
        """
        if scores.ndim != 1 or scores.shape != is_member.shape:
            raise ConfigError(
                f"There are scores of shape {scores.shape}, and the truth is of shape "
                f"{is_member.shape}. Give each record one score, and say whether it is "
                "a member."
            )
        checked_scores(scores[is_member], scores[~is_member])
        count = len(scores)
        client_names, client = _positions("client", clients, count, EVERYBODY)
        class_names, label = _positions("class", classes, count, EVERYTHING)
        order, names_hash = np.arange(count), ""
        if records is not None:
            names = _texts("record", records, count)
            order = np.lexsort((client, names))
            belongs = np.stack([client, label], axis=1)[order]
            _refuse_repeats(names[order], belongs[:, 0])
            names_hash = _hash([client_names, class_names], names[order], belongs)
        shared = None if groups is None else _texts("group", groups, count)[order]
        truth, group, cluster = is_member[order], None, None
        if shared is not None:
            _, first, number = np.unique(shared, return_index=True, return_inverse=True)
            group = first[number].astype(np.int64)
            _refuse_torn(shared, group, client[order])
            if (truth[group] != truth).any():
                group, cluster = None, group
        return cls(
            np.asarray(scores, np.float64)[order],
            truth,
            client[order],
            label[order],
            client_names,
            class_names,
            group,
            None if known is None else _numbers(as_array(known), count)[order],
            names_hash,
            cluster,
        )


def _numbers(
    known: Shaped[np.ndarray, "..."], count: int
) -> Float[np.ndarray, "records columns"]:
    table = known[:, None] if known.ndim == 1 else known
    if table.ndim != 2 or len(table) != count or table.dtype.kind not in "fiu":
        raise ConfigError(
            f"There are {count} scores, and what is known without the model is of shape "
            f"{known.shape} and type {known.dtype}. Give a number, or a row of them, for "
            "each score."
        )
    numbers = table.astype(np.float64)
    bad = int((~(np.abs(numbers) <= LARGEST)).any(axis=1).sum())
    if bad:
        raise ConfigError(
            "What is known without the model must be finite numbers, of at most "
            f"{LARGEST:g} either way, and of {bad} of {count} records it is not. Write "
            "such numbers, or take the records out."
        )
    return numbers


def _refuse_torn(
    names: Shaped[np.ndarray, " records"],
    group: Int[np.ndarray, " records"],
    client: Int[np.ndarray, " records"],
) -> None:
    """Refuse groups of several clients, whose scores are not compared."""
    odd = client[group] != client
    if odd.any():
        raise ConfigError(
            f"Records of the group {shown(str(names[odd][0]))} differ in their client: "
            "a group is one client's. Correct the columns, or leave group out."
        )


def _refuse_repeats(
    names: Shaped[np.ndarray, " records"], client: Int[np.ndarray, " records"]
) -> None:
    twice = (names[1:] == names[:-1]) & (client[1:] == client[:-1])
    if twice.any():
        raise ConfigError(
            f"The record {shown(str(names[1:][twice][0]))} stands there more than once "
            "for one client. Give one score for each record: several of one are no "
            "independent trials."
        )


def _hash(
    groups: Sequence[Sequence[str]],
    names: Shaped[np.ndarray, " records"],
    belongs: Int[np.ndarray, "records 2"],
) -> str:
    digest = hashlib.sha256(json.dumps(groups).encode())
    for name in names.tolist():
        digest.update(f"\n{name}".encode())
    digest.update(belongs.astype("<i8").tobytes())
    return digest.hexdigest()


def _positions(
    what: str, given: Names | None, count: int, whole: str
) -> tuple[tuple[str, ...], Int[np.ndarray, " records"]]:
    """Return the names of clients or classes, and each record's position among them."""
    if given is None:
        return (whole,), np.zeros(count, np.int64)
    texts = _texts(what, given, count)
    names, position = np.unique(texts, return_inverse=True)
    if len(names) > MOST_GROUPS:
        raise ConfigError(
            f"{count} records are said to be of {len(names)} groups by their {what}, "
            f"and at most {MOST_GROUPS} are supported. Leave {what} out, or join some."
        )
    return tuple(names.tolist()), position.astype(np.int64)


def _texts(what: str, given: Names, count: int) -> Shaped[np.ndarray, " records"]:
    values = as_array(given)
    if values.shape != (count,):
        raise ConfigError(
            f"There are {count} scores, and the names by {what} are of shape "
            f"{values.shape}. Give one for each score."
        )
    texts = values.astype(str)
    for text in np.unique(texts).tolist():
        if not text.strip() or len(text) > LONGEST or not text.isprintable():
            raise ConfigError(
                f"A {what} is called {shown(text)}. A name has 1 to {LONGEST} printable "
                "characters."
            )
    return texts
