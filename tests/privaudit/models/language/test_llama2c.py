import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dialogues import INSTRUCTION, TokenSequences
from privaudit.models.interfaces import Tuning
from privaudit.models.language.llama2c import llama, load_llama2c, read_pieces
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.places import SHARED

STORIES = SHARED / "data/stories260K"
HEADER = (8, 12, 2, 2, 1, 300, 16)


@pytest.fixture(scope="module")
def stories() -> tuple[Any, Any]:
    if not STORIES.is_dir():
        pytest.skip("the language model stories260K is not here")
    return load_llama2c(STORIES)


def random_file(header: tuple[int, ...] = HEADER) -> bytes:
    dim, hidden, layers, heads, keys, vocabulary, context = header
    each = 2 * dim * dim + 2 * dim * (dim * keys // heads) + 3 * dim * hidden + 2 * dim
    count = abs(vocabulary) * dim + layers * each + dim + context * dim // heads
    count += dim * abs(vocabulary) if vocabulary < 0 else 0
    numbers = np.random.default_rng(0).normal(size=count).astype("<f4")
    return struct.pack("<7i", *header) + numbers.tobytes()


def joined_as_llama2c_does(pieces: list[tuple[str, float]], text: str) -> list[int]:
    """Join the neighbours with the best score until none are left, as its run.c does.

    A naive twin: characters first, unknown ones as their bytes.
    """
    numbers = {piece: number for number, (piece, _) in enumerate(pieces)}
    ids: list[int] = []
    for character in f" {text}" if text else "":
        if character in numbers:
            ids.append(numbers[character])
        else:
            ids += [byte + 3 for byte in character.encode()]
    while True:
        pairs = [
            (pieces[numbers[both]][1], -place)
            for place, (left, right) in enumerate(pairwise(ids))
            if (both := pieces[left][0] + pieces[right][0]) in numbers
        ]
        if not pairs:
            return [1, *ids]
        place = -max(pairs)[1]
        both = pieces[ids[place]][0] + pieces[ids[place + 1]][0]
        ids[place : place + 2] = [numbers[both]]


def test_greedy_text_is_the_published_one(stories: tuple[Any, Any]) -> None:
    """The sentence stands in the README of the weights' own source."""
    language = StackedLanguageModel(*stories)
    start = TokenSequences(torch.tensor([[[1]]]), torch.tensor([[[INSTRUCTION]]]))
    (said,) = language.generate(torch.zeros(1, 1, 0, 64), start, Tuning(), longest=40)[
        0
    ]
    assert said.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play "
        "outside in the park."
    )


def test_the_tokenizer_takes_its_text_apart_and_back(stories: tuple[Any, Any]) -> None:
    tokenizer = stories[1]
    for text in ("A dog runs.", "Two  blanks\nand a line", "a snowman ☃ and é", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]


@settings(max_examples=50, deadline=None)
@example("A child in a pink dress is climbing up a set of stairs.")
@given(st.text("aehtnds iTLO.,!☃é\n", max_size=25))
def test_pieces_join_as_in_llama2c(text: str) -> None:
    if not STORIES.is_dir():
        pytest.skip("the language model stories260K is not here")
    tokenizer, pieces = _tokenizer_and_pieces()
    assert tokenizer.encode(text) == joined_as_llama2c_does(pieces, text)


def _tokenizer_and_pieces(found: list[Any] = []) -> Any:  # noqa: B006
    if not found:
        pieces = read_pieces((STORIES / "tok512.bin").read_bytes(), 512)
        found += [load_llama2c(STORIES)[1], pieces]
    return found


def test_weights_are_read_in_the_files_order() -> None:
    content = random_file()
    numbers = np.frombuffer(content, "<f4", offset=28)
    model = llama(content)
    embedding = model.get_input_embeddings().weight
    assert np.array_equal(embedding.numpy(force=True).ravel(), numbers[: 300 * 8])
    assert model.lm_head.weight is embedding
    layers = 2 * (8 + 64 + 32 + 32 + 64 + 8 + 3 * 8 * 12)
    assert np.array_equal(
        model.model.norm.weight.numpy(force=True), numbers[2400 + layers :][:8]
    )


def test_a_head_of_its_own_is_read() -> None:
    header = (*HEADER[:5], -300, 16)
    content = random_file(header)
    model = llama(content)
    last = np.frombuffer(content, "<f4", offset=28)[-2400:]
    assert np.array_equal(model.lm_head.weight.numpy(force=True).ravel(), last)
    assert not torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize(
    "content", [b"", random_file()[:-4], random_file() + b"0000", bytes(28)]
)
def test_a_file_that_is_not_whole_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"weights has \d+ bytes"):
        llama(content, "weights")


def test_a_tokenizer_of_another_model_is_refused() -> None:
    one = struct.pack("<fi", -1.0, 1) + b"a"
    assert read_pieces(struct.pack("<i", 1) + one, 1) == [("a", -1.0)]
    with pytest.raises(ConfigError, match=r"holds 1 tokens .* model has 2"):
        read_pieces(struct.pack("<i", 1) + one, 2)


def test_a_folder_without_both_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(random_file())
    with pytest.raises(MissingFileError, match="has 1 and 0 of them"):
        load_llama2c(tmp_path)
