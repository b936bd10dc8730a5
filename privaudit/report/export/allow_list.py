"""An allow-list for JSON: what is not named stays behind, and is counted.

A rule looks at one value and returns what may leave, or OMITTED. Keys are rules too: a
key without one is unknown, and neither it nor what is below it gets through.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from privaudit.core.phrases import is_phrase


class _Omitted(Enum):
    OMITTED = "omitted"


OMITTED: Final = _Omitted.OMITTED
Omitted = Literal[_Omitted.OMITTED]
LEFT_OUT = "left out: not words that this version's code writes"


@dataclass
class AllowList:
    """What was left behind, and where it stood: for the owner, not for the export.

    Attributes:
        withheld: Places whose keys are known, and kept back on purpose.
        few: Places of figures on too few records.
        unknown: Places that no rule names.
        odd: Places whose values are not what their rule allows.
    """

    withheld: list[str] = field(default_factory=list)
    few: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


FieldRule = Callable[[AllowList, Any, str], Any]


def withheld(sieve: AllowList, value: Any, place: str) -> Omitted:
    """Keep a known value back."""
    sieve.withheld.append(place)
    return OMITTED


def number(sieve: AllowList, value: Any, place: str) -> Any:
    """Let a finite number through, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (is_number and math.isfinite(value)):
        return value
    return _refuse(sieve, place)


def flag(sieve: AllowList, value: Any, place: str) -> Any:
    """Let True and False through, or None."""
    is_flag = value is None or isinstance(value, bool)
    return value if is_flag else _refuse(sieve, place)


def counts(sieve: AllowList, value: Any, place: str) -> Any:
    """Let a list of whole numbers through."""
    if isinstance(value, list) and all(type(entry) is int for entry in value):
        return value
    return _refuse(sieve, place)


def length(sieve: AllowList, value: Any, place: str) -> Any:
    """Let only the length of a list through."""
    return len(value) if isinstance(value, list) else _refuse(sieve, place)


def text(*patterns: str) -> FieldRule:
    """Return a rule for texts that match one of the patterns from end to end."""
    known = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.ASCII)

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        if value is None or (isinstance(value, str) and known.fullmatch(value)):
            return value
        return _refuse(sieve, place)

    return rule


def sentence(*patterns: str) -> FieldRule:
    """Return a rule for texts, in whose place others are said to be left out."""
    matching = text(*patterns)

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        sieved = matching(sieve, value, place)
        return LEFT_OUT if sieved is OMITTED else sieved

    return rule


def phrases(about: str) -> FieldRule:
    """Return a rule for what code says, or nothing; others are said to be left out."""

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        if value in (None, "") or (isinstance(value, str) and is_phrase(about, value)):
            return value
        _refuse(sieve, place)
        return LEFT_OUT

    return rule


def one_of(names: Callable[[], list[str]]) -> FieldRule:
    """Return a rule for registered names, which are looked up when first needed."""

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        return value if value in names() else _refuse(sieve, place)

    return rule


def entries(rules: Mapping[str, FieldRule]) -> FieldRule:
    """Return a rule for an object of known keys, or None in its place."""

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            return _refuse(sieve, place)
        fields = {}
        for key, one in value.items():
            below = f"{place}/{key}"
            if key not in rules:
                sieve.unknown.append(below)
                continue
            sieved = rules[key](sieve, one, below)
            if sieved is not OMITTED:
                fields[key] = sieved
        return fields

    return rule


def each(pattern: str, rule_of_each: FieldRule) -> FieldRule:
    """Return a rule for an object whose keys match a pattern; other keys are unknown.

    Args:
        pattern: Of whole keys.
        rule_of_each: Of their values.
    """
    known = re.compile(pattern, re.ASCII)

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            return OMITTED if value is None else _refuse(sieve, place)
        named = {key: rule_of_each for key in value if known.fullmatch(str(key))}
        return entries(named)(sieve, value, place)

    return rule


def listed(rule_of_each: FieldRule) -> FieldRule:
    """Return a rule for a list, whose entries all have the same rule."""

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        if not isinstance(value, list):
            return _refuse(sieve, place)
        sieved = [
            rule_of_each(sieve, one, f"{place}/{i}") for i, one in enumerate(value)
        ]
        return [one for one in sieved if one is not OMITTED]

    return rule


def either(*rules: FieldRule) -> FieldRule:
    """Return a rule that takes what the first of several rules lets through."""

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        for one in rules:
            sieved = one(AllowList(), value, place)
            if sieved is not OMITTED:
                return sieved
        return _refuse(sieve, place)

    return rule


def _refuse(sieve: AllowList, place: str) -> Omitted:
    sieve.odd.append(place)
    return OMITTED
