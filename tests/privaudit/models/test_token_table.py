import math

import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import ANSWER, INSTRUCTION, PICTURE, TokenSequences
from privaudit.models.token_table import (
    CLAMPED_TOKENS,
    Slice,
    TokenTable,
    token_signals,
)

VOCABULARY = 9
# A word, a picture of three parts, a question of two words, an answer of three.
KINDS = [2, 1, 1, 1, 2, 2, 3, 3, 3, 0]
IDS = [4, 0, 0, 0, 5, 6, 7, 8, 1, 0]


def words(*kinds: list[int]) -> TokenSequences:
    length = max(map(len, kinds))
    padded = torch.tensor([row + [0] * (length - len(row)) for row in kinds])
    ids = torch.tensor(IDS + [0] * length)[:length]
    return TokenSequences(ids.expand(len(kinds), -1), padded)


def table(*kinds: list[int], seed: int = 0) -> TokenTable:
    some = words(*kinds)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, *some.ids.shape, VOCABULARY, generator=generator)
    return TokenTable.from_signals([token_signals(logits.double(), some)])


def places(found: Tensor) -> list[int]:
    return found[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("part", "published", "all_positions"),
    [
        ("image", [1, 2], [1, 2, 3]),
        ("instruction", [4], [0, 4, 5]),
        ("description", [6, 7], [6, 7]),
        ("instruction+description", [4, 5, 6, 7], [0, 4, 5, 6, 7]),
    ],
)
def test_slices_line_up_with_tokens(
    part: Slice, published: list[int], all_positions: list[int]
) -> None:
    """A slice is scored where it expects its own next token; or any token at all."""
    found = table(KINDS)
    assert places(found.scored(part)) == published
    assert places(found.scored(part, all_positions=True)) == all_positions


@pytest.mark.parametrize(
    ("part", "places_of_all"),
    [
        ("instruction", [3, 4]),
        ("description", [5, 6, 7]),
        ("instruction+description", [3, 4, 5, 6, 7]),
    ],
)
def test_every_word_of_a_slice_is_a_target(
    part: Slice, places_of_all: list[int]
) -> None:
    """Its first one too, which is expected at a position outside of the slice."""
    found = table(KINDS).scored(part, True, needs_target=True)
    assert places(found) == places_of_all


def test_an_answer_of_one_letter_is_scored_at_that_letter() -> None:
    kinds = [PICTURE, INSTRUCTION, INSTRUCTION, ANSWER, ANSWER]
    found = table(kinds)
    assert places(found.scored("description", True, needs_target=True)) == [2, 3]
    assert places(found.scored("description")) == [3]


def test_position_i_is_scored_against_token_i_plus_one() -> None:
    """A model that knows the order of the answer is right at every position."""
    some = words(KINDS)
    logits = torch.zeros(1, 1, len(KINDS), VOCABULARY)
    for place, following in enumerate(IDS[1:]):
        logits[0, 0, place, following] = 50.0
    found = TokenTable.from_signals([token_signals(logits, some)])
    likely = found.statistics.log_likelihood
    assert (likely[found.scored("instruction+description")] > -1e-9).all()
    assert likely[0, :3].isnan().all()  # the next token is part of a picture
    assert likely[0, 8:].isnan().all()  # the last word, and padding
    assert not found.statistics.mean.isnan().any()


def test_a_pictures_numbers_are_never_looked_at() -> None:
    some = words(KINDS)
    wild = torch.where(some.kinds == 1, 10_000, some.ids)
    logits = torch.randn(1, 1, len(KINDS), VOCABULARY)
    token_signals(logits, TokenSequences(wild, some.kinds))


def test_chunks_of_other_lengths_are_joined() -> None:
    """Nothing is scored in what was added."""
    whole = table(KINDS, [2, 2, 3, 3])
    generator = torch.Generator().manual_seed(0)
    shape = (1, 2, len(KINDS), VOCABULARY)
    logits = torch.randn(shape, generator=generator).double()
    some = words(KINDS, [2, 2, 3, 3])
    chunks = [
        token_signals(logits[:, :1], some[:1]),
        token_signals(
            logits[:, 1:, :4], TokenSequences(some.ids[1:, :4], some.kinds[1:, :4])
        ),
    ]
    joined = TokenTable.from_signals(chunks)
    assert joined.kinds.tolist() == whole.kinds.tolist()
    mask = whole.scored("description")
    assert joined.scored("description").tolist() == mask.tolist()
    torch.testing.assert_close(joined.entropy(2.0)[mask], whole.entropy(2.0)[mask])


def test_each_model_has_its_own_table() -> None:
    logits = torch.randn(2, 1, len(KINDS), VOCABULARY)
    signals = token_signals(logits, words(KINDS))
    assert signals["kinds"].shape == (2, 1, len(KINDS))
    second = TokenTable.from_signals([signals], model=1)
    torch.testing.assert_close(second.entropy(1.0), signals["entropy 1"][1])


def test_clamped_signals_are_another_thing() -> None:
    logits = torch.full((1, 1, len(KINDS), VOCABULARY), -30.0)
    logits[..., 0] = 30.0
    clamped = token_signals(logits, words(KINDS), frozenset({CLAMPED_TOKENS}))
    assert clamped["entropy 0.5"].min() > 1e-4
    assert token_signals(logits, words(KINDS))["entropy 0.5"].max() < 1e-9


def test_a_slice_of_one_token_is_refused_by_name() -> None:
    found = table(KINDS, [1, 1, 2, 2, 3])
    with pytest.raises(ConfigError, match=r"'description' of record 1 has 1 token"):
        found.scored("description")


def test_a_slice_without_neighbours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'instruction' of record 0 has 2 token"):
        table([2, 1, 2, 3, 3]).scored("instruction")


def test_an_order_that_was_not_computed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"those of 0\.5, 1, 2, inf"):
        table(KINDS).entropy(3.0)
    with pytest.raises(ConfigError, match=r"those of 0\.5, 1, 2\. "):
        table(KINDS).modified(math.inf)
