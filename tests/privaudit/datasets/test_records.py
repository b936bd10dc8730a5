"""Records, their dialogues, and tokens of their pictures."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.files.mapped_tensors import map_tensors, write_rows
from privaudit.datasets.records import (
    Cohort,
    Dialogue,
    PictureTokens,
    Records,
    TokenSequences,
    check_dialogues,
    pad_words,
)
from privaudit.federation.batches import in_parts, pick_batch
from privaudit.federation.query import questions
from tests.conftest import toy_records
from tests.toy_language import toy_dialogues


def test_trimmed_words_lose_only_columns_of_padding() -> None:
    ids = torch.tensor([[5, 6, 0, 0], [5, 6, 7, 0]])
    kinds = torch.tensor([[2, 3, 0, 0], [2, 3, 3, 0]])
    trimmed = TokenSequences(ids, kinds).trimmed()
    assert trimmed.ids.tolist() == [[5, 6, 0], [5, 6, 7]]
    assert TokenSequences(ids[:0], kinds[:0]).trimmed().length == 0


def test_a_question_holds_nothing_of_its_answer() -> None:
    words = toy_dialogues(6).words
    assert words is not None
    asked = questions(words)
    assert asked.length == 4
    assert torch.equal(asked.ids, words.ids[:, :4])


def test_padded_words_keep_each_part_in_place() -> None:
    one, two = toy_dialogues(2).words, toy_dialogues(3, seed=1).words
    assert one is not None
    assert two is not None
    both = pad_words([one, two], 4)
    assert both.ids.shape == (2, 4, one.length)
    assert torch.equal(both.ids[0, :2], one.ids)
    assert torch.equal(both.kinds[1, :3], two.kinds)
    assert not both.kinds[:, 3].any()


@pytest.mark.parametrize(
    ("dialogue", "count", "reason"),
    [
        (Dialogue("?", ("yes",)), 2, "2 records and 1 dialogues"),
        (Dialogue(" ", ("yes",)), 1, "Record 0 is asked ' '"),
        (Dialogue("?", ()), 1, "there must be an answer"),
        (Dialogue("?", ("yes", "")), 1, "nothing of that may be blank"),
    ],
)
def test_dialogues_without_words_are_refused(
    dialogue: Dialogue, count: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_dialogues([dialogue], count)


TABLE = torch.arange(60.0).view(10, 3, 2)


@pytest.fixture
def tokens(tmp_path: Path) -> PictureTokens:
    write_rows(tmp_path / "tokens.safetensors", [{"tokens": TABLE}])
    return PictureTokens.of(map_tensors(tmp_path / "tokens.safetensors")["tokens"])


def held(tokens: PictureTokens | None) -> tuple[int, Tensor]:
    """Return where the table is, and the tokens."""
    assert tokens is not None
    return tokens.table.data_ptr(), tokens.read()


def test_shards_cohorts_and_batches_hold_rows_and_copy_no_tokens(
    tokens: PictureTokens,
) -> None:
    count, place = len(tokens), tokens.table.data_ptr()
    records = Records(torch.zeros(count, 1), torch.arange(count), tokens)
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


def test_joined_records_keep_what_all_parts_have() -> None:
    one, other = toy_records(5), toy_records(3, seed=1)
    both = Records.joined([one, other])
    assert torch.equal(both.features, torch.cat([one.features, other.features]))
    assert torch.equal(both.labels, torch.cat([one.labels, other.labels]))
    assert both.crafted is None
    assert both.contents is None  # of no data set
    crafted = [replace(r, crafted=torch.ones(len(r), 2, 3)) for r in (one, other)]
    joined = Records.joined(crafted).crafted
    assert joined is not None
    assert joined.shape == (8, 2, 3)
    assert Records.joined([crafted[0], other]).crafted is None
