"""In which bits a run was computed that ``privaudit verify --recompute`` makes again."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import PrivauditError
from privaudit.core.portable_bits import Bits

_WITH_VALUES = ("--owner", "--device", "--memory", "--bits")  # of verify


class _SaidComputed(BaseModel):
    bits: Bits = "native"


class _SaidHeader(BaseModel):
    """What a run's header says of how it was computed."""

    threads: Annotated[int, Field(ge=1, le=1024)]
    computed: _SaidComputed = _SaidComputed()


def computed_by(argv: Sequence[str]) -> tuple[Bits | None, int | None]:
    """Return bits and threads of the run that ``verify --recompute`` makes again.

    Read before any library is loaded, and so unchecked: they only say how to compute.
    Of a run in a store, they are found out later, and what they are is said.

    Args:
        argv: The command's arguments.

    Returns:
        Both None where nothing is said, and of other commands.
    """
    if "--recompute" not in argv or "verify" not in argv:
        return None, None
    folder, names, rest = os.environ.get("PRIVAUDIT_RUNS") or "runs", [], [*argv]
    while rest:
        one = rest.pop(0)
        name, equals, value = one.partition("=")
        if name == "--runs" and (equals or rest):
            folder = value if equals else rest.pop(0)
        elif one in _WITH_VALUES and rest:
            rest.pop(0)
        elif not one.startswith("-"):
            names.append(one)
    return _said_by(Path(folder), names[1] if len(names) > 1 else None)


def _said_by(folder: Path, name: str | None) -> tuple[Bits | None, int | None]:
    """Return what a run's header says of bits and threads; None where it says nothing."""
    with suppress(PrivauditError, OSError, ValueError, IndexError):
        if name is None:
            name = read_bytes(folder / "latest").decode().splitlines()[-1]
        inside = folder / name
        place = inside if "/" not in name and inside.exists() else Path(name)
        asked = _SaidHeader.model_validate_json(read_bytes(place / "run.json"))
        return asked.computed.bits, asked.threads
    return None, None
