"""Bounds on foreign files: how much is read, and why no more, in one place.

Files come from other people: runs, baselines, cards, plans, data sets and weights. What
they may cost is bounded before they are read, so that none takes more than about 2 GiB
of memory. Where a file is right and larger, the environment raises a bound.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from privaudit.core.errors import ConfigError, LimitError

MIB = 2**20


@dataclass(frozen=True)
class Limit:
    """One bound.

    Attributes:
        most: How many are read without being asked for more.
        unit: Of what.
        reason: Why not more, behind "since".
    """

    most: int
    unit: str
    reason: str


LIMITS: Mapping[str, Limit] = {
    "text": Limit(64 * MIB, "bytes", "JSON takes up to 25 times its size in memory"),
    "lines": Limit(256 * MIB, "bytes", "each line becomes an object in memory"),
    "list": Limit(
        512 * MIB, "bytes", "that is more than the largest list of COCO, of 448 MB"
    ),
    "json_memory": Limit(1536 * MIB, "bytes of memory", "it is parsed as a whole"),
    "line": Limit(16 * MIB, "bytes in one line", "a line is held as a whole"),
    "records": Limit(5_000_000, "records", "each takes some 300 bytes of memory"),
    "classes": Limit(
        2_000, "classes", "the text of each takes up to 0.6 MiB of memory"
    ),
    "baseline": Limit(
        2_000_000, "numbers", "a classifier is fitted to them some forty times"
    ),
    "tensors": Limit(768 * MIB, "bytes", "they are held in memory twice"),
    "arrays": Limit(768 * MIB, "bytes", "they are held in memory twice"),
    "file": Limit(256 * MIB, "bytes", "no picture and no part of CIFAR is so large"),
    "entries": Limit(2_000_000, "entries", "each takes some 500 bytes of memory"),
    "toml": Limit(2 * MIB, "bytes", "it is read a character at a time"),
    "depth": Limit(50, "levels", "no plan nests its tables so deeply"),
    "folders": Limit(200_000, "folders", "links may make endlessly many of a few"),
    "directory": Limit(
        128 * MIB, "bytes", "each entry is ten times as large in memory"
    ),
    "archive": Limit(
        768 * MIB,
        "bytes",
        "a compressed .tar is held in memory, and others and folders are not",
    ),
    "unpacked": Limit(2048 * MIB, "bytes", "a compressed .tar is unpacked every time"),
    "pixels": Limit(50_000_000, "pixels", "each takes some 30 bytes on its way"),
    "proportion": Limit(
        100, "times its shorter side", "resizing the shorter side would blow it up"
    ),
}
"""By name; ``PRIVAUDIT_MAX_`` and the name in capitals raises one."""


def most(name: str) -> int:
    """Return a bound, as the environment says or by default.

    Raises:
        ConfigError: The environment says something else than a whole number.
    """
    variable = variable_of(name)
    said = os.environ.get(variable)
    if said is None:
        return LIMITS[name].most
    if not (said.isascii() and said.isdigit() and len(said) < 20):
        raise ConfigError(
            f"{variable} is {said[:40]!r}, and takes a whole number of "
            f"{LIMITS[name].unit}. Set one such as {LIMITS[name].most}, or unset it."
        )
    return int(said)


def variable_of(name: str) -> str:
    """Return the environment's variable that raises a bound."""
    return f"PRIVAUDIT_MAX_{name.upper()}"


def limit_of(name: str) -> str:
    """Return which bound a file of a run has, by the ending of its name."""
    endings = {".npz": "arrays", ".safetensors": "tensors", ".jsonl": "lines"}
    return endings.get(name[name.rfind(".") :], "text")


def check_limit(name: str, found: int, what: str) -> None:
    """Refuse, by a LimitError, what has or declares more than a bound allows.

    ``what`` is its name, in words.
    """
    allowed, limit = most(name), LIMITS[name]
    if found > allowed:
        raise LimitError(
            f"{what} has {found:,} {limit.unit}, and at most {allowed:,} are read, "
            f"since {limit.reason}. If that is right, set {variable_of(name)}={found}."
        )


def check_json(content: bytes, what: str, *, numbers: bool = True) -> None:
    """Refuse, by a LimitError, JSON that would take too much memory as Python's objects.

    Counts the signs that make objects, at what Python needs for each: 240 bytes for an
    object, 120 for a list, 50 for a text and 40 for a number. Signs inside of texts
    count as well, so that the estimate is never too small by much.

    Numbers cost nothing where a form names no lists of them, as they are not kept then.
    """
    costs = {b"{": 240, b"[": 120, b'"': 25, b",": 40 if numbers else 0}
    cost = len(content) + sum(content.count(sign) * costs[sign] for sign in costs)
    check_limit("json_memory", cost, what)
