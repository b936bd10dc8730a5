"""Parameters of what users name: read of a command line, and checked; ranges of numbers.

Classes are frozen pydantic dataclasses, whose fields are the parameters.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import get_protocol_members

from privaudit.core.errors import ConfigError, shown

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

T = TypeVar("T")
MOST = 1_000_000  # of anything that is counted: far more than any federation has
COHORT_SIZE = 128
"""Models trained at once, stacked: bounds memory, and is part of a run's record."""
UNION_KIND = re.compile(r"(constrained-)?(int|float|str|bool)$|literal\[|none$|list\[")
"""What pydantic appends to the place of an error for one kind of a union."""
LATER: dict[str, Any] = {"later": True}
"""json_schema_extra of a parameter that a later version added."""


def parse_pairs(example: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return what NAME=VALUE texts set; the value "none" is None.

    Raises:
        ConfigError: A text has no sign of equality, or no name.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(
                f"{text!r} sets nothing. Write NAME=VALUE, as in {example}."
            )
        values[name.strip().replace("-", "_")] = None if value == "none" else value
    return values


def parse_spec(option: str, text: str, example: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of NAME or NAME:key=value,key=value.

    Raises:
        ConfigError: There is no name, or no parameter after the colon.
    """
    name, colon, parameters = text.partition(":")
    if not name or (colon and not parameters):
        raise ConfigError(
            f"{option} {text!r} lacks a {'parameter' if name else 'name'}. Write NAME "
            f"or NAME:key=value, as in {example}."
        )
    return name, parse_pairs(example, parameters.split(",") if parameters else [])


def field_names(factory: Callable[..., object]) -> frozenset[str]:
    """Return the names of what a class takes."""
    if not dataclasses.is_dataclass(factory):
        return frozenset()
    return frozenset(field.name for field in dataclasses.fields(factory))


def build(what: str, factory: Callable[..., T], settings: Mapping[str, Any]) -> T:
    """Return what a class makes of those parameters that differ from their defaults.

    Texts are read. Errors call it ``what``, such as "trainer 'promptfl'".

    Raises:
        ConfigError: A parameter is unknown or out of range.
    """
    from pydantic import ValidationError

    known = field_names(factory)
    for key in settings:  # pydantic's dataclasses would ignore it
        if key not in known:
            raise ConfigError(
                f"The {what} has no parameter {shown(key)}. It has: "
                f"{', '.join(sorted(known)) or 'none'}."
            )
    try:
        built = factory(**settings)
    except ValidationError as error:
        raise ConfigError(readable(error, what)) from None
    refuse_truths(what, settings, built)
    for key in known:
        value = getattr(built, key)
        if isinstance(value, int) and value > MOST:
            raise ConfigError(
                f"The {what} cannot take {key} = {shown(value)}: at most {MOST:,} are "
                "counted. Take fewer."
            )
    return built


def complete_settings(built: object) -> dict[str, Any]:
    """Return all parameters of what :func:`build` made, as JSON knows them.

    Without those that a later version added, where they stand at their defaults: they
    do not rename what an earlier version made.
    """
    known = getattr(type(built), "__pydantic_fields__", {})
    later = {
        name
        for name, field in known.items()
        if field.json_schema_extra == LATER and getattr(built, name) == field.default
    }
    plain = to_plain(type(built), built)
    return {name: value for name, value in plain.items() if name not in later}


def refuse_incomplete(what: str, made: object, protocol: type, advice: str) -> None:
    """Refuse an object without what a protocol asks for."""
    names = sorted(get_protocol_members(protocol))
    missing = [name for name in names if not hasattr(made, name)]
    if missing:
        raise ConfigError(
            f"The {what} ({type(made).__module__}.{type(made).__qualname__}) has no "
            f"{', '.join(missing)}. {advice}"
        )


def refuse_truths(what: str, given: Mapping[str, Any], made: object) -> None:
    """Refuse True and False where a number is expected: pydantic takes 1 and 0."""
    for name, value in given.items():
        if isinstance(value, bool) and not isinstance(getattr(made, name), bool):
            raise ConfigError(
                f"The {what} cannot take {name} = {value}: that is no number. Give one."
            )


def readable(error: "ValidationError", what: str) -> str:
    """Return what is wrong first, in a sentence about a run, a trainer or the like."""
    errors = error.errors()
    place, message = first_problem(errors)
    if not place:  # two parameters that don't go together
        return f"The {what} cannot be made: {message}."
    field = ".".join(str(part) for part in place)
    return f"The {what} cannot take {field} = {shown(errors[0]['input'])}: {message}."


def first_problem(
    errors: "Sequence[ErrorDetails]",
) -> tuple[tuple[int | str, ...], str]:
    """Return where pydantic's first error stands, and what is wrong there.

    Of a union, pydantic has one error for each of its kinds, named behind the place:
    they are one problem, and all that the kinds say is said.
    """
    place, kinds = errors[0]["loc"], errors[:1]
    is_unknown = errors[0]["type"] == "extra_forbidden"  # whatever it is called
    if place and not is_unknown and UNION_KIND.match(str(place[-1])):
        place = place[:-1]
        kinds = [one for one in errors if one["loc"][:-1] == place]
    said = [one["msg"].removeprefix("Value error, ").rstrip(".") for one in kinds]
    return place, "; or: ".join(dict.fromkeys(said))


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def to_plain(kind: Any, value: object) -> Any:
    """Return a value of a type as JSON knows it: dataclasses by their fields."""
    return _adapter(kind).dump_python(value, mode="json", by_alias=True)


def from_plain(kind: Any, entry: object) -> Any:
    """Return the value that :func:`to_plain` wrote.

    Raises:
        ValueError: The entry is of another form.
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(entry)
    except ValidationError as error:
        raise ValueError(readable(error, "entry")) from None


def alike(one: Any, other: Any) -> bool:
    """Say whether JSON is the same but for rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = one.keys()
        return keys == other.keys() and all(alike(one[k], other[k]) for k in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-9)  # below any delta
    return bool(one == other)


def as_int(value: Any) -> Any:
    """Return a whole number as Python's own, such as numpy's; others as they are.

    Example:
        >>> import numpy as np
        >>> as_int(np.int64(4)), as_int(True), as_int(0.5)
        (4, True, 0.5)
    """
    with suppress(TypeError):
        return value if isinstance(value, bool) else operator.index(value)
    return value


def above_zero(name: str, value: float) -> None:
    """Raise ConfigError unless the value is above 0 and finite."""
    _require(0 < value < math.inf, name, value, "above 0 and finite")


def at_least_one(name: str, value: int) -> None:
    """Raise ConfigError unless the value is at least 1."""
    _require(value >= 1, name, value, "at least 1")


def fraction(name: str, value: float) -> None:
    """Raise ConfigError unless the value lies in (0, 1]."""
    _require(0 < value <= 1, name, value, "above 0 and at most 1")


def probability(name: str, value: float) -> None:
    """Raise ConfigError unless the value lies in (0, 1)."""
    _require(0 < value < 1, name, value, "between 0 and 1")


def _require(holds: bool, name: str, value: float | int, wanted: str) -> None:
    if not holds:
        there = shown(value) if isinstance(value, int) else f"{value:g}"
        raise ConfigError(f"The {name} must be {wanted}, and is {there}.")
