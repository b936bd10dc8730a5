import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.models.clip.prompt_tokens import Tokenizer, prompt_tokens

START, END = 49406, 49407


def ids_without_start(texts: list[str], context_length: int) -> Tensor:
    """Number letters from 3; end token 2, padding 0, no start token: as T5 does it."""
    rows = torch.zeros(len(texts), context_length, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        numbers = [3 + ord(c) - ord("a") for c in text if c.isalpha()]
        numbers = [*numbers[: context_length - 1], 2]
        row[: len(numbers)] = torch.tensor(numbers)
    return rows


def test_a_prompt_is_start_context_name_end_padding(tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer, ["cat."], 3, 10)
    assert tokens.context_start == 1
    # 2368 "cat", 269 ".": CLIP's published vocabulary.
    assert tokens.ids.tolist() == [
        [START, 2368, 2368, 2368, 2368, 269, END, 0, 0, 0],
    ]


def test_a_tokenizer_without_start_token_has_its_context_first() -> None:
    tokens = prompt_tokens(ids_without_start, ["cab"], 2, 7)
    assert tokens.context_start == 0
    assert tokens.ids.tolist() == [[5, 5, 5, 3, 4, 2, 0]]


def test_the_longest_text_that_fits_does_fit(tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer, ["cat cat."], 5, 10)
    assert tokens.ids[0, -1] == END


def test_a_name_too_long_for_the_context_says_so_with_numbers(
    tokenizer: Tokenizer,
) -> None:
    with pytest.raises(
        ConfigError, match=r"'cat cat\.' takes 5 tokens.* leave 4 of .*10"
    ):
        prompt_tokens(tokenizer, ["cat.", "cat cat."], 6, 10)


@pytest.mark.parametrize("texts", [[], [""], ["cat.", " ."]])
def test_empty_names_are_refused(tokenizer: Tokenizer, texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        prompt_tokens(tokenizer, texts, 2, 10)
