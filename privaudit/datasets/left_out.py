"""Candidates that a run does without: named by their positions, so that it says which."""

import re
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from privaudit.core.errors import ConfigError, shown
from privaudit.core.limits import most
from privaudit.datasets.split import UNUSED, Split

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
