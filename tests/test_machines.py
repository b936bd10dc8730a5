"""Equal seeds on other hardware: rounding differs, and must not grow."""

from collections.abc import Iterator

import pytest
import torch

from privaudit import train
from privaudit.runs import Run


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["promptfl", "dp-fpl"])
def test_default_runs_agree_across_threads_and_chunks(
    trainer: str, threads: None
) -> None:
    """Other threads and chunks sum in another order, as another machine does."""

    def run(count: int, cohort_size: int) -> Run:
        torch.set_num_threads(count)
        return train(trainer, seed=4, cohort_size=cohort_size)

    for one, other in zip(run(1, 128).transcript, run(2, 3).transcript, strict=True):
        assert (one.round, one.sender, one.kind) == (
            other.round,
            other.sender,
            other.kind,
        )
        for name, tensor in one.tensors.items():
            scale = float(tensor.abs().max())
            torch.testing.assert_close(
                tensor, other.tensors[name], rtol=0, atol=1e-4 * max(scale, 1e-3)
            )
