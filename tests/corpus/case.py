"""A case: a bad input of a command or a reader, and what may come of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Spoil = Callable[[Path], None]  # changes a fresh copy of the small world


def nothing(_: Path) -> None:
    """Leave the world as it is: the command line is what is wrong."""


@dataclass(frozen=True)
class Case:
    """One bad input.

    Attributes:
        name: Says what is wrong, and where.
        argv: Of ``privaudit``; WORLD is where the world's copy lies.
        spoil: Makes the world wrong.
        call: In place of the command line: a call of the library.
        fine: Why it may be taken (exit code 0, 1 or 3), where it may.
        environment: Variables.
        full_output: Whether nothing that is printed can be written.
    """

    name: str
    argv: tuple[str, ...] = ()
    spoil: Spoil = nothing
    call: Callable[[], object] | None = None
    fine: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    full_output: bool = False
