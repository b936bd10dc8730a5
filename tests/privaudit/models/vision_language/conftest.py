from collections.abc import Iterator

import pytest

from tests.small_vlms import without_frames


@pytest.fixture(scope="session", autouse=True)
def without_videos() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        without_frames(patch)
        yield
