import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _threads() -> Iterator[None]:
    """Run on one thread, unless BENCH_THREADS says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "1")))
    yield
    torch.set_num_threads(before)
