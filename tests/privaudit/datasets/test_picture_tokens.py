from pathlib import Path

import pytest
import torch
from torch import Tensor

from privaudit.datasets.files.mapped_tensors import map_tensors, write_rows
from privaudit.datasets.picture_tokens import PictureTokens
from privaudit.datasets.records import Cohort, Records
from privaudit.federated.batches import in_parts, pick_batch

TABLE = torch.arange(60.0).view(10, 3, 2)


@pytest.fixture
def tokens(tmp_path: Path) -> PictureTokens:
    write_rows(tmp_path / "tokens.safetensors", [{"tokens": TABLE}])
    return PictureTokens.of(map_tensors(tmp_path / "tokens.safetensors")["tokens"])


def records_of(tokens: PictureTokens) -> Records:
    labels = torch.arange(len(tokens))
    return Records(torch.zeros(len(tokens), 1), labels, tokens)


def held(tokens: PictureTokens | None) -> tuple[int, Tensor]:
    """Return where the table is, and the tokens."""
    assert tokens is not None
    return tokens.table.data_ptr(), tokens.read()


def test_shards_cohorts_and_batches_hold_rows_and_copy_no_tokens(
    tokens: PictureTokens,
) -> None:
    records, place = records_of(tokens), tokens.table.data_ptr()
    shards = [records.pick(torch.tensor([7, 2, 5])), records.pick(torch.tensor([1]))]
    cohort = Cohort.of(["ann", "ben"], shards)
    found, read = held(cohort.tokens)
    assert found == place
    assert torch.equal(read[0], TABLE[[7, 2, 5]])
    assert torch.equal(read[1], torch.stack([TABLE[1], *torch.zeros(2, 3, 2)]))
    chosen = torch.tensor([[2, 0], [0, 0]])
    batch = pick_batch(cohort, chosen, torch.tensor([[True, True], [True, False]]))
    for part, rows in zip(in_parts(batch, 1), ([5, 1], [7, 1]), strict=True):
        found, read = held(part.tokens)
        assert found == place
        assert torch.equal(read[:, 0], TABLE[rows])


def test_tokens_of_several_tables_are_read_to_be_joined(tokens: PictureTokens) -> None:
    other = PictureTokens.of(TABLE + 100)
    same = PictureTokens.joined([tokens[2:4], tokens[:1]])
    assert same.table is tokens.table
    assert torch.equal(same.read(), TABLE[[2, 3, 0]])
    both = PictureTokens.joined([tokens[2:4], other[:1]])
    assert torch.equal(both.read(), torch.stack([TABLE[2], TABLE[3], TABLE[0] + 100]))
    assert (len(both), both.parts) == (3, 3)


def test_what_is_read_can_be_written_into(tokens: PictureTokens) -> None:
    tokens.read().zero_()
    assert torch.equal(tokens.read(), TABLE)
