"""Memory of this process: its peak, and its limits."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, as getrusage(2) says


def processes_that_fit() -> int | None:
    """Return how many processes as large as this one the memory holds, this one beside.

    None where the system does not say: Windows.
    """
    try:
        import resource  # which Windows has not
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min([physical, *memory_limits()]) // peak) - 1


def memory_limits(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Yield the limits of containers and batch systems on this process, in bytes.

    Source: Linux, "Control Group v2", memory.max; "Memory Resource Controller" (v1),
    memory.limit_in_bytes.

    Args:
        groups: The groups that this process is in; a limit above one counts, too.
        root: Where the groups are mounted; a container sees its own there.
    """
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield from _up_from(root, group, "memory.max")
            elif "memory" in controllers.split(","):
                yield from _up_from(root / "memory", group, "memory.limit_in_bytes")


def _up_from(root: Path, group: str, name: str) -> Iterator[int]:
    inner = Path(group.strip("/"))
    for folder in (inner, *inner.parents):
        with suppress(OSError, ValueError):  # none there, or "max"
            yield int((root / folder / name).read_text())
