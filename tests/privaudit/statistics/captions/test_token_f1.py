import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.exact_match import exact_match
from privaudit.statistics.captions.token_f1 import (
    F1,
    mean_short_answers,
    plain_words,
    same_words,
    short_answer_scores,
    token_f1,
)

WORDS = st.lists(st.sampled_from(["a", "the", "blue", "Sea", "1,000", "sea."])).map(
    " ".join
)


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("blue sea", "the blue sea", 1.0),
        ("The Blue, Sea.", "blue sea", 1.0),
        ("dark blue sea", "blue sea", 2 * (2 / 3) / (2 / 3 + 1)),
        ("blue", "the deep blue sea", 2 * (1 / 3) / (1 / 3 + 1)),
        ("sea sea sea", "sea", 2 * (1 / 3) / (1 / 3 + 1)),
        ("sea sea", "sea by the sea", 2 * (2 / 3) / (1 + 2 / 3)),
        ("red", "blue", 0.0),
        ("", "blue", 0.0),
        ("the", "a", 1.0),
        ("Unanswerable.", "unanswerable", 1.0),
        ("unanswerable question", "unanswerable", 0.0),
        ("unanswerable", "unanswerable question", 0.0),
        ("", "unanswerable", 0.0),
    ],
)
def test_f1_counts_words_in_common_by_hand(
    answer: str, reference: str, score: float
) -> None:
    assert token_f1(answer, [reference]) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The U.S. Army's 1,000 men", ("us", "armys", "1000", "men")),
        ("a\u2013b", ("\u2013b",)),  # no dash of ASCII, and "a" is a word before it
        ("an apple\ta day\n", ("apple", "day")),
        ("Another theatre", ("another", "theatre")),
    ],
)
def test_words_are_those_of_the_official_rules(
    answer: str, words: tuple[str, ...]
) -> None:
    assert plain_words(answer) == words


def test_the_best_reference_counts() -> None:
    assert token_f1("Denver Broncos", ["Broncos", "the Denver Broncos", "x"]) == 1.0
    assert same_words("Denver Broncos", ["Broncos", "the Denver Broncos"])
    assert not same_words("Broncos Denver", ["Denver Broncos"])
    assert token_f1("Broncos Denver", ["Denver Broncos"]) == 1.0


def test_a_reference_without_words_counts_only_where_all_are_so() -> None:
    assert token_f1("", ["the", "blue"]) == 0
    assert not same_words("", ["the", "blue"])
    assert token_f1("", ["the", "..."]) == 1
    assert same_words("the", ["..."])


def test_numbers_stay_as_written_unlike_in_visual_questions() -> None:
    assert exact_match("two dogs", ["2 dogs"])
    assert not same_words("two dogs", ["2 dogs"])


@given(first=WORDS, second=WORDS)
def test_f1_is_even_between_0_and_1_and_1_where_words_are_the_same(
    first: str, second: str
) -> None:
    score = token_f1(first, [second])
    assert score == token_f1(second, [first])
    assert 0 <= score <= 1
    assert not same_words(first, [second]) or score == 1


def test_both_scores_of_each_answer() -> None:
    found = short_answer_scores(["blue", "the sea"], [["red"], ["sea", "x"]])
    assert found.tolist() == [[0, 1], [0, 1]]
    with pytest.raises(ConfigError, match="1 answers to 2 questions"):
        short_answer_scores(["blue"], [["red"], ["sea"]])


def test_the_mean_is_over_models_and_records_and_its_interval_over_records(
    rng: np.random.Generator,
) -> None:
    scores = (rng.random((3, 2, 400)) < 0.7).astype(float)
    found = mean_short_answers(scores, (F1, "exact match"), rng)
    assert found[F1].value == pytest.approx(scores[:, 0].mean())
    assert found["exact match"].value == pytest.approx(scores[:, 1].mean())
    assert found[F1].n == (400,)
    assert found[F1].method.startswith("mean of 3 models, bootstrap over records")
    half = 1.96 * scores[:, 0].mean(axis=0).std() / 20
    assert found[F1].high - found[F1].low == pytest.approx(2 * half, rel=0.1)


def test_the_interval_covers_as_often_as_it_says(rng: np.random.Generator) -> None:
    covered = 0
    for _ in range(200):
        scores = (rng.random((1, 1, 80)) < 0.8).astype(float)
        one = mean_short_answers(scores, (F1,), rng)[F1]
        covered += one.low <= 0.8 <= one.high
    assert covered / 200 > 0.9


def test_few_records_have_no_interval(rng: np.random.Generator) -> None:
    one = mean_short_answers(np.ones((2, 1, 9)), (F1,), rng)[F1]
    assert (one.value, one.unresolved) == (1.0, "needs 10 records, has 9")
