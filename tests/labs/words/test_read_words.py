import numpy as np
import pytest

from privaudit.auditing.parts.extraction import ExtractedShare
from privaudit.statistics.estimate import mean_with_t
from privaudit_labs.words.read_words import WORDS, ReadWords, judge
from privaudit_labs.words.span_words import ReadTexts

USUAL = {1, 2}
TEXTS = [(1, 10, 11, 2), (1, 12, 2), (1, 10, 13, 2)]
MEMBERS = np.array([True, True, False])


def test_tokens_that_all_texts_hold_count_nowhere() -> None:
    read = ReadTexts(frozenset({1, 2, 10, 11}), frozenset({(1, 0), (12, 1), (40, 1)}))
    assert judge(read, TEXTS, MEMBERS, USUAL) == {
        "precision by rows of the table": (1.0, 0.5),
        "recall by rows of the table": (pytest.approx(2 / 3), 0.5),
        "precision by the span": (0.5, 0.0),
        "recall by the span": (pytest.approx(1 / 3), 0.0),
    }


def test_what_was_not_read_and_who_has_no_others_are_no_zeros() -> None:
    assert judge(ReadTexts(), TEXTS, MEMBERS, USUAL) == {}
    read = ReadTexts(frozenset({10}))
    assert judge(read, TEXTS, np.ones(3, bool), USUAL) == {}


def test_a_stored_part_reads_back() -> None:
    half = mean_with_t([0.4, 0.5, 0.6])
    share = ExtractedShare(half, half, half)
    found = ReadWords({"recall by the span": share}, None, {"rank 96": 3})
    assert WORDS.from_json(WORDS.to_json(found), {}) == found
