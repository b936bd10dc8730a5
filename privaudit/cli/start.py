"""The entry of the command line: bits are chosen before any library is loaded."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.portable_bits import Bits, chosen_bits, start_anew

_COMPARED = ("table", "selftest")  # commands whose numbers people hold against others'
_WITH_VALUES = [
    "--owner",
    "--device",
    "--memory",
    "--bits",
    "--key",
    "--subject",
]  # of verify
_MOST_THREADS = 1024


def run() -> None:
    """Run the command line, in a process that computes the bits that are asked for."""
    argv = sys.argv[1:]
    try:
        bits, threads = recomputed_bits(argv)
        start_anew(chosen_bits(argv, default_bits(argv), bits), threads)
    except ConfigError as error:
        sys.stderr.write(f"privaudit: {error}\n")
        sys.exit(2)
    from privaudit.cli.main import run

    run()


def default_bits(argv: Sequence[str]) -> Bits | None:
    """Return the bits of a command that says nothing of them; None for any.

    Example:
        >>> default_bits(["selftest"]), default_bits(["train"])
        ('portable', None)
    """
    command = next((one for one in argv if not one.startswith("-")), "")
    return "portable" if command in _COMPARED else None


def recomputed_bits(argv: Sequence[str]) -> tuple[Bits | None, int | None]:
    """Return bits and threads of the run that ``verify --recompute`` makes again.

    Read before any library is loaded, and so unchecked: they only say how to compute.
    Of a run in a store, they are found out later, and what they are is said. Both are
    None where nothing is said, and of other commands.
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
    return _computed(Path(folder), names[1] if len(names) > 1 else None)


def _computed(folder: Path, name: str | None) -> tuple[Bits | None, int | None]:
    """Return what a run's header says of bits and threads; None where it says nothing."""
    from pydantic_core import from_json

    from privaudit.core.limits import read_bytes
    from privaudit.runs.names import LATEST, among_runs, latest_names

    with suppress(PrivauditError, OSError, ValueError, LookupError, AttributeError):
        name = name or latest_names(read_bytes(folder / LATEST))[-1]
        path = among_runs(name, Path(name), folder)
        header = from_json(read_bytes(path / "run.json"))
        bits = header.get("computed", {}).get("bits", "native")
        threads = header["threads"]
        whole = type(threads) is int and 1 <= threads <= _MOST_THREADS
        if whole and bits in get_args(Bits):
            return bits, threads
    return None, None
