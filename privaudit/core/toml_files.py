"""TOML that users write, bounded before it is read."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import ConfigError
from privaudit.core.limits import check_limit


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises:
        MissingFileError: There is no such file, or it is no plain one.
        LimitError: It is larger, or nested deeper, than a bound.
        ConfigError: It is no TOML.
    """
    content = read_bytes(path, "toml")
    # A dotted key of n parts takes the parser's memory n times n.
    check_limit("depth", max(_dots(content), default=0), str(path))
    try:
        parsed = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOML's own, or no text at all
        reason = str(error).partition("\n")[0][:200]
        raise ConfigError(f"{path} is no TOML: {reason}.") from None
    check_limit("depth", max(_depths(parsed)), str(path))
    return parsed


def _dots(content: bytes) -> Iterator[int]:
    """Yield how many dots stand in what may be a key: in a header or before a sign."""
    for line in content.splitlines():
        line = line.strip()
        if not line.startswith(b"#"):
            *keys, value = line.split(b"=")
            yield from (key.count(b".") for key in keys)
            yield value.count(b".") if line.startswith(b"[") else 0


def _depths(found: Any) -> Iterator[int]:
    """Yield how deep each value lies, without recursion."""
    todo = [(found, 0)]
    while todo:
        value, depth = todo.pop()
        yield depth
        below = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            todo += [(one, depth + 1) for one in below]
