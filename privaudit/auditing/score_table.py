"""Scores that somebody else computed, one for each record beside the truth, and their files.

A file is .csv, .tsv, .jsonl or .npz, and bounded before it is read:

============  ==========================================================
score         higher means more likely a member
member        1 or 0, true or false: whether the record was trained on
client        optional: whose record it is; scores are ranked within a client
class         optional: the class of the record
record        optional: its name; two files with the same names can be compared
group         optional: records that share a coin, such as those of one patient
baseline      optional: a score of the same record without the trained model
feature_NAME  optional: another number that is known without the trained model
============  ==========================================================

In .npz a ``feature_NAME`` may have a row of numbers for each record.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.auditing.external_models import Array, as_array
from privaudit.core.errors import ConfigError, shown
from privaudit.core.lazy_torch import Tensor
from privaudit.core.limits import check_limit, read_bytes
from privaudit.core.storage import DAMAGE, read_npz
from privaudit.datasets.text.rows import ENDINGS, read_rows
from privaudit.statistics.roc import checked_scores

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
        group: For each record the position of the first one that shares its coin; None
            where each has its own.
        cluster: Likewise of the first one of its group, where groups hold members and
            others: each record had a coin, and intervals count what groups share.
        known: Numbers of each record that hold nothing of the trained model, such as a
            score before training; None where none are given.
        names_hash: SHA-256 of what the records are called and belong to, without scores
            and truth: tables that share it have the same records in the same order.
            Empty where records have no names.
        names: What the records are called; None where nobody says.
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
    names: Shaped[np.ndarray, " records"] | None = None

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
        order, names_hash, names = np.arange(count), "", None
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
            None if names is None else names[order],
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
    # numpy makes the text "nan" of a NaN in a list of texts: the list is asked itself.
    missing = sum(map(_is_missing, values if isinstance(given, Tensor) else given))
    if missing:
        raise ConfigError(
            f"Of {count} names by {what} {missing} are missing (None or NaN), and would "
            f"be one {what}. Give each of those records a {what} of its own, or leave "
            "them out."
        )
    try:
        texts = values.astype(str)
    except UnicodeDecodeError:
        raise ConfigError(
            f"The names by {what} are bytes that are no ASCII. Give texts."
        ) from None
    for text in np.unique(texts).tolist():
        if not text.strip() or len(text) > LONGEST or not text.isprintable():
            raise ConfigError(
                f"A {what} is called {shown(text)}. A name has 1 to {LONGEST} printable "
                "characters."
            )
    return texts


def _is_missing(name: Any) -> bool:
    """Say whether a name is None, NaN, NaT or pandas' NA, which is not asked for truth."""
    return name is None or type(name).__name__ == "NAType" or bool(name != name)


NEEDED, OPTIONAL = ("score", "member"), ("client", "class", "record", "group")
BASELINE, FEATURE = "baseline", "feature_"
_TRUTHS: Mapping[str, bool] = {
    "1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False,
}  # fmt: skip


def read_scores(path: str | Path) -> ScoreTable:
    """Return the scores of a file.

    Raises:
        MissingFileError: There is no such file, or it is not readable.
        LimitError: It is larger than a bound.
        ConfigError: It is no such table; the text names the line and what to do.
    """
    file = Path(path)
    ending = file.suffix.lower()
    if ending == ".npz":
        columns = _arrays(file)
    elif ending in ENDINGS:
        columns = _rows(file)
    else:
        raise ConfigError(
            f"{file} is no file of scores that is read: those end in "
            f"{', '.join((*ENDINGS, '.npz'))}. Write it as one of these."
        )
    try:
        return ScoreTable.of(
            columns["score"],
            columns["member"],
            *(columns.get(name) for name in OPTIONAL),
            known=_known(columns),
        )
    except ConfigError as error:
        raise ConfigError(f"{file} cannot be audited. {error}") from None


def _is_known(name: str) -> bool:
    return name == BASELINE or name.startswith(FEATURE)


def _known(
    columns: Mapping[str, Shaped[np.ndarray, "..."]],
) -> Shaped[np.ndarray, "..."] | None:
    """Return what is known without the trained model, a row for each record."""
    found = [columns[name] for name in sorted(filter(_is_known, columns))]
    count = columns["score"].shape[:1]
    if any(one.shape[:1] != count or one.ndim > 2 for one in found):
        shapes = ", ".join(str(one.shape) for one in found)
        raise ConfigError(
            f"Its baseline and features are of shape {shapes}. Give one number, or one "
            "row of them, for each score."
        )
    return np.column_stack(found) if found else None


def _check_columns(found: Iterable[str], where: str | Path) -> None:
    missing = [name for name in NEEDED if name not in found]
    read = (*NEEDED, *OPTIONAL)
    unknown = [n for n in found if n not in read and not _is_known(n)]
    if missing or unknown:
        odd = (
            f"no {missing[0]}" if missing else f"{shown(unknown[0])}, which is not read"
        )
        raise ConfigError(
            f"{where} has the columns {shown(', '.join(found))}: {odd}. Read are "
            f"{', '.join(NEEDED)}, and if you like {', '.join(OPTIONAL)}, {BASELINE} and "
            f"{FEATURE}NAME. Rename the column, add it or take it out."
        )


def _rows(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the columns of a table of texts."""
    columns: dict[str, list[Any]] = {}
    for row in read_rows(path):
        if not columns:
            is_json = path.suffix.lower() == ".jsonl"
            _check_columns(row.fields, row.where if is_json else f"The head of {path}")
            columns = {name: [] for name in row.fields}
        if row.fields.keys() != columns.keys():  # in JSON each row names its own
            raise ConfigError(
                f"{row.where} has other columns than the first row. Give each row "
                f"{', '.join(columns)}."
            )
        for name, values in columns.items():
            values.append(_reader(name)(row.take(name), row.where))
    if not columns:
        raise ConfigError(
            f"{path} holds no scores. Write a first line with the names of the columns, "
            f"such as {','.join(NEEDED)}, and a line for each record."
        )
    for name in set(columns) & set(OPTIONAL):  # numpy makes all as long as the longest
        size = 4 * len(columns[name]) * max(map(len, columns[name]))
        check_limit("arrays", size, f"The column {name} of {path}")
    return {name: np.array(values) for name, values in columns.items()}


def _read_number(what: str, text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"{where} has the {what} {shown(text)}, which is no finite number. Write one, "
            "or take the record out."
        )
    return number


def _read_member(text: str, where: str) -> bool:
    truth = _TRUTHS.get(text.lower())
    if truth is None:
        raise ConfigError(
            f"{where} has {shown(text)} under member. Write 1 if the record was trained "
            "on, else 0."
        )
    return truth


def _read_name(text: str, where: str) -> str:
    if not text or len(text) > LONGEST:
        raise ConfigError(
            f"{where} has the name {shown(text)}. A name has 1 to {LONGEST} characters."
        )
    return text


def _reader(name: str) -> Callable[[str, str], Any]:
    if name == "member":
        return _read_member
    return _read_name if name in OPTIONAL else partial(_read_number, name)


def _arrays(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the columns of an npz file; names are as they stand there."""
    content = read_bytes(path, "arrays")
    try:
        columns = dict(read_npz(content, str(path)))
        _check_columns(columns, path)
        kinds = {name: values.dtype.kind for name, values in columns.items()}
    except ConfigError:  # with the bounds
        raise
    except DAMAGE as error:
        raise ConfigError(
            f"{path} cannot be read ({error}). Write it with numpy.savez, of plain "
            "arrays without objects."
        ) from None
    member = columns["member"]
    truths = kinds["member"] == "b" or np.isin(member, (0, 1)).all()
    if kinds["score"] not in "fiu" or kinds["member"] not in "biuf" or not truths:
        raise ConfigError(
            f"{path} has scores of type {columns['score'].dtype}, and members of type "
            f"{member.dtype}. Give numbers, and 1 or 0 for each record."
        )
    return {**columns, "member": member.astype(bool)}
