from pathlib import Path

import pytest

from tests.privaudit.recording.small_federation import record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that was recorded whole, made once for each module."""
    place = tmp_path_factory.mktemp("recorded") / "run"
    record(place)
    return place
