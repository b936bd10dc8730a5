"""The entry of the command line: bits are chosen before any library is loaded."""

import sys
from collections.abc import Sequence

from privaudit.core.errors import ConfigError
from privaudit.core.portable_bits import Bits, chosen_bits, start_anew

_COMPARED = ("table", "selftest")  # commands whose numbers people hold against others'


def run() -> None:
    """Run the command line, in a process that computes the bits that are asked for."""
    argv = sys.argv[1:]
    try:
        bits, threads = None, None
        if "--recompute" in argv:
            from privaudit.cli.recomputed_bits import computed_by

            bits, threads = computed_by(argv)
        start_anew(chosen_bits(argv, default_bits(argv), bits), threads)
    except ConfigError as error:
        sys.exit(_refused(error))
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


def _refused(error: ConfigError) -> int:
    sys.stderr.write(f"privaudit: {error}\n")
    return 2
