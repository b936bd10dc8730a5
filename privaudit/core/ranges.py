"""Checks of a number's range, with the name and value in the error."""

import math

from privaudit.core.errors import ConfigError


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
        raise ConfigError(f"The {name} must be {wanted}, and is {value:g}.")
