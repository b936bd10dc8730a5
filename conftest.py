"""What tests and doctests share: folders of their own, and one thread."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests are small: threads would only wait for one another


@pytest.fixture(autouse=True)
def own_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Keep every test's runs to itself, and a session's cached features."""
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(cache))
