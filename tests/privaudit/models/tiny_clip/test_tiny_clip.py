"""The weights that come with the package, and their tokenizer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit.models.tiny_clip.loading import (
    CONTEXT_LENGTH,
    IMAGE_SIZE,
    TinyClip,
    TinyTokenizer,
    load,
    preprocess_batch,
)


@pytest.fixture(scope="module")
def loaded() -> TinyClip:
    return load()


def test_it_loads_frozen(loaded: TinyClip) -> None:
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert 1 <= loaded.model.logit_scale.exp().item() <= 100.01


def test_a_plain_picture_of_any_size_stays_plain() -> None:
    prepared = preprocess_batch(torch.full((2, 3, 50, 40), 0.75))
    assert prepared.shape == (2, 3, IMAGE_SIZE, IMAGE_SIZE)
    torch.testing.assert_close(prepared, torch.ones_like(prepared))


TOKENIZER = TinyTokenizer()


def tokens(text: str) -> list[str]:
    return [TOKENIZER.vocabulary[number] for number in TOKENIZER.encode(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a photo of the digit five.",
            ["a", "photo", "of", "the", "digit", "five", "."],
        ),
        ("Five", ["five"]),
        ("the letter k", ["the", "letter", "k"]),
        ("cat", ["c", "##a", "##t"]),
        ("a-5", ["a", "-", "5"]),
        ("x_y", ["x", "_", "y"]),
        ("naïve", ["n", "##a", "<unknown>", "##v", "##e"]),
        ("  ", []),
    ],
)
def test_texts_split_into_the_tokens_expected(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_a_row_is_start_text_end_and_zeros() -> None:
    row = TOKENIZER("five.")[0].tolist()
    five, stop = TOKENIZER.encode("five.")
    start, end = TOKENIZER.sot_token_id, TOKENIZER.eot_token_id
    assert row == [start, five, stop, end] + [0] * (CONTEXT_LENGTH - 4)


def test_a_long_text_is_cut_and_keeps_its_end() -> None:
    row = TOKENIZER(["five " * 100], context_length=8)[0].tolist()
    five = TOKENIZER.encode("five")[0]
    assert row == [TOKENIZER.sot_token_id, *[five] * 6, TOKENIZER.eot_token_id]


def test_no_texts_give_no_rows() -> None:
    assert TOKENIZER([]).shape == (0, CONTEXT_LENGTH)


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_the_end_token_is_the_highest_and_stands_once(texts: list[str]) -> None:
    table = TOKENIZER(texts)
    end = TOKENIZER.eot_token_id
    assert end == TOKENIZER.vocab_size - 1 == len(TOKENIZER.vocabulary) - 1
    assert torch.equal((table == end).sum(1), torch.ones(len(texts), dtype=torch.long))
    assert (table.max(1).values == end).all()


def test_the_vocabulary_has_no_token_twice() -> None:
    assert len(set(TOKENIZER.vocabulary)) == TOKENIZER.vocab_size
    assert TOKENIZER.vocabulary[0] == "<pad>"
