import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import (
    Dialogue,
    TokenSequences,
    check_dialogues,
    pad_words,
)
from privaudit.federated.query import questions
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
