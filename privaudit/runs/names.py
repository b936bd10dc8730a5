"""Which folder a name means among runs, found without any library.

``privaudit verify --recompute`` reads a run's header before libraries are loaded.
"""

import re
from pathlib import Path

from privaudit.core.errors import ConfigError, shown

LATEST = "latest"  # the file beside the runs that names those last trained
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")


def is_name(name: str) -> bool:
    """Say whether a run may have that name: it is no path, and not taken."""
    return bool(_NAME.fullmatch(name)) and name != LATEST


def check_name(name: str) -> str:
    """Return a run's name.

    Raises:
        ConfigError: It could be taken for a path, or is taken.
    """
    if not is_name(name):
        raise ConfigError(
            f"A run cannot be called {shown(name)}: up to 200 letters, digits, '.', "
            f"'_' and '-' make a name, without a '.' in front, and {LATEST!r} is "
            "taken. Choose another --name; --runs says in which folder it is kept."
        )
    return name


def latest_names(content: bytes) -> list[str]:
    """Return the names that the file ``latest`` holds, not yet held against the rules."""
    return content.decode(errors="replace").splitlines()


def among_runs(text: str, path: Path, folder: Path) -> Path:
    """Return a run's folder: among the runs by its name, else as a path.

    Args:
        text: As it was typed: ``./one`` is no name, and always a path.
        path: The same as a path.
        folder: The folder that all runs lie in.

    Raises:
        OSError: No system takes such a path.
    """
    inside = folder / path
    first, other = (inside, path) if is_name(text) else (path, inside)
    return other if other.exists() and not first.exists() else first
