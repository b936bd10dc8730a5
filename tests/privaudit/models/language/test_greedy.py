import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import INSTRUCTION, PADDING, PICTURE, TokenSequences
from privaudit.models.interfaces import Tuning
from privaudit.models.language.greedy import prompt_groups
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.privaudit.models.language.small_language import (
    draw_factors,
    draw_rows,
    lora,
    stacked,
)
from tests.privaudit.models.language.test_stacked_language import KINDS

LONGEST = 6


def prompts(lengths: list[list[int]]) -> tuple[Tensor, TokenSequences]:
    """Draw pictures of two parts and prompts of the given lengths."""
    generator = torch.Generator().manual_seed(3)
    k, rows, longest = len(lengths), len(lengths[0]), max(map(max, lengths))
    ids = torch.randint(3, 50, (k, rows, longest), generator=generator)
    kinds = torch.full_like(ids, INSTRUCTION)
    kinds[..., 1:3] = PICTURE
    kinds[torch.arange(longest) >= torch.tensor(lengths)[..., None]] = PADDING
    return torch.randn(k, rows, 2, 32, generator=generator), TokenSequences(ids, kinds)


def naive(
    language: StackedLanguageModel,
    pictures: Tensor,
    words: TokenSequences,
    tuning: Tuning,
) -> list[int]:
    """Continue one prompt of one model, reading all of it anew for every token."""
    length = int((words.kinds != PADDING).sum())
    ids, kinds = words.ids[:length], words.kinds[:length]
    said: list[int] = []
    while len(said) < LONGEST and said[-1:] != [2]:
        row = TokenSequences(ids.view(1, 1, -1), kinds.view(1, 1, -1))
        logits = language.logits(pictures[None, None], row, tuning)
        said.append(int(logits[0, 0, -1].argmax()))
        ids = torch.cat([ids, torch.tensor(said[-1:])])
        kinds = torch.cat([kinds, torch.tensor([INSTRUCTION])])
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_naive_loop_without_cache(
    kind: str,
) -> None:
    language = stacked(kind)
    factors = draw_factors(language, 2)
    pictures, words = prompts([[5, 8], [8, 6]])
    found = language.generate_ids(pictures, words, lora(factors), LONGEST)
    for model in range(2):
        own = {name: (a[[model]], b[[model]]) for name, (a, b) in factors.items()}
        for row in range(2):
            picture, row_words = pictures[model, row], words[model][row]
            expected = naive(language, picture, row_words, lora(own))
            assert found[model][row] == expected


def test_an_answer_stops_at_its_end_token(
    language: StackedLanguageModel,
) -> None:
    pictures, words = prompts([[5, 8, 5]])
    free = language.generate_ids(pictures, words, Tuning(), LONGEST)[0]
    assert max(map(len, free)) == LONGEST
    language.ends = frozenset({free[0][3]})
    stopped = language.generate_ids(pictures, words, Tuning(), LONGEST)[0]
    assert stopped[0] == free[0][: free[0].index(free[0][3]) + 1]
    assert len(stopped[0]) <= 4


def test_answers_are_text_without_special_tokens(
    language: StackedLanguageModel,
) -> None:
    pictures, words = prompts([[5, 6]])
    ids = language.generate_ids(pictures, words, Tuning(), 4)
    texts = language.generate(pictures, words, Tuning(), 4)
    assert texts[0][0] == " ".join(str(i) for i in ids[0][0] if i > 2)


def test_the_end_of_the_context_ends_an_answer(
    language: StackedLanguageModel,
) -> None:
    pictures, words = prompts([[62]])
    language.ends = frozenset()
    assert len(language.generate_ids(pictures, words, Tuning(), 20)[0][0]) == 3


def test_a_row_of_padding_gets_no_words(language: StackedLanguageModel) -> None:
    pictures, words = prompts([[5, 0]])
    assert language.generate(pictures, words, Tuning(), 3)[0][1] == ""


def test_prompts_with_answers_are_refused(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2)
    with pytest.raises(ConfigError, match="hold answers already"):
        language.generate(pictures, words, Tuning(), 3)
    with pytest.raises(ConfigError, match="at most 0 tokens"):
        language.generate(pictures, words, Tuning(), 0)


@given(
    st.integers(1, 3).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(0, 3), min_size=k, max_size=k),
            min_size=1,
            max_size=200,
        )
    )
)
def test_each_prompt_is_in_one_group_of_its_length(columns: list[list[int]]) -> None:
    lengths = torch.tensor(columns).T
    seen = []
    for group in prompt_groups(lengths):
        assert (lengths.flatten()[group.source] == group.length).all()
        for place, model, row in group.owners(lengths.shape[1]):
            assert place // group.source.shape[1] == model
            seen.append((model, row))
    assert sorted(seen) == [tuple(i) for i in lengths.nonzero().tolist()]
