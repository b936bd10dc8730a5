"""What steps take is counted, and bounded by what was asked for."""

import pytest
import torch
from torch import Tensor

from privaudit.core.devices import (
    as_chosen,
    chosen,
    in_chunks,
    is_checkpointing,
    memory_limit,
    moved,
    parse_size,
    use_checkpointing,
    use_memory,
)
from privaudit.core.errors import ConfigError
from privaudit.core.operations import PeakMemory

MB = 1_000_000


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GiB", 20 * 2**30), ("500 MB", 500 * MB), ("1.5kib", 1536), ("7kB", 7000)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "20", "GiB", "0GiB", "-1GB", "1e3MB", "20  GB", "9" * 13 + "B", "\u0661GB"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no amount of memory"):
        parse_size(text)


def test_a_limit_holds_within_its_block() -> None:
    assert memory_limit() is None  # on the CPU
    with use_memory("2MB"):
        assert memory_limit() == 2 * MB
        with use_memory(None), use_memory(MB):
            assert memory_limit() == MB
        assert memory_limit() == 2 * MB
    assert memory_limit() is None


def test_another_process_computes_as_this_one() -> None:
    with use_memory("3MB"), use_checkpointing():
        assert chosen() == (3 * MB, True)
        carried = chosen(parts=3)
    with as_chosen(*carried):
        assert memory_limit() == MB
        assert is_checkpointing()
        with torch.no_grad():
            assert not is_checkpointing()
    assert not is_checkpointing()


def test_tensors_in_lists_are_moved() -> None:
    assert moved([torch.zeros(1)], torch.device("meta"))[0].is_meta


def test_tensors_are_counted_while_they_live() -> None:
    weight = torch.ones(500, 500, requires_grad=True)  # 1 MB each
    before = torch.ones(500, 500)
    with PeakMemory() as memory:
        product = before @ weight
        seen = product.t().reshape(-1)[:3]  # the same memory, and a copy of it
        assert memory.now == 2 * MB
        del seen
        assert memory.now == MB
        product += 1  # makes nothing
        product.sum().backward()
        assert 2 * MB <= memory.peak < 4 * MB
        del product
        weight.grad = None
        assert memory.now == 0
    with PeakMemory() as again:
        assert again.peak == 0


def test_rows_are_taken_as_memory_holds_them() -> None:
    taken: list[int] = []

    def run(rows: Tensor) -> Tensor:
        taken.append(len(rows))
        return (torch.ones(len(rows), 1000) * rows[:, None]).sum(dim=1)

    whole = torch.cat(list(in_chunks(9, 9, run)))
    assert taken == [9]
    with use_memory(30_000):  # a row's two tensors take 8 kB
        parts = torch.cat(list(in_chunks(9, 9, run)))
        assert taken[1:] == [1, 3, 3, 2]
        assert [len(part) for part in in_chunks(0, 9, run)] == [0]
    assert torch.equal(parts, whole)
