import sys
from pathlib import Path

import pytest

from privaudit.execution import local, room
from privaudit.execution.computing import use_threads


def test_the_limits_of_containers_count_of_either_version(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:cpu,memory:/docker/a\n1:cpu:/b\n0::/slice/job:1\n")
    limits = {
        "memory/memory.limit_in_bytes": "9223372036854771712",  # none, in version 1
        "memory/docker/a/memory.limit_in_bytes": "3000",
        "slice/memory.max": "4000",
        "slice/job:1/memory.max": "max",
        "b/memory.max": "1",  # of another process
    }
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    assert list(room.memory_limits(groups, tmp_path)) == [3000, 2**63 - 4096, 4000]
    assert not list(room.memory_limits(tmp_path / "none", tmp_path))


def test_the_smaller_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory_limits", lambda: [])
    assert (room.processes_that_fit() or 0) > 1
    monkeypatch.setattr(room, "memory_limits", lambda: [2**62, 1])
    with use_threads(1):
        assert room.processes_that_fit() == -1
        assert local._that_fit() == 1


def test_without_figures_of_memory_one_process_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert room.processes_that_fit() is None
    with use_threads(1):
        assert local._that_fit() == 1
