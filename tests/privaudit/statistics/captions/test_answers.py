import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.answers import (
    F1,
    chosen,
    exact_match,
    exact_matches,
    mean_short_answers,
    plain_words,
    same_words,
    short_answer_scores,
    token_f1,
)

COLOURS = ("red", "dark blue", "green")


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("Red.", "red", True),
        ("  the RED ", "red", True),
        ("two dogs", "2 dogs", True),
        ("it's a dog", "it\u2019s dog", True),
        ("(dog)", "dog", True),
        ("A", "a", True),
        ("reds", "red", False),
        ("A", "the", False),
        ("", "red", False),
        ("", ".", False),
    ],
)
def test_how_an_answer_is_written_does_not_matter(
    answer: str, reference: str, right: bool
) -> None:
    assert exact_match(answer, [reference]) is right


@pytest.mark.parametrize(
    "answer",
    ["B", "b", "(B)", "B.", " (b) ", "The answer is B.", "Answer: (B)", "B) dark blue",
     "(B) dark blue", "B. Dark blue", "dark blue", "Dark blue.",
     "the answer is dark blue", "The answer is: B", "The answer is: (B)",
     "The correct answer is : B) dark blue"],
)  # fmt: skip
def test_a_choice_is_named_by_its_letter_or_its_text(answer: str) -> None:
    assert chosen(answer, COLOURS) == 1
    assert exact_match(answer, ["B"], COLOURS)
    assert exact_match(answer, ["dark blue"], COLOURS)
    assert not exact_match(answer, ["(A)"], COLOURS)


@pytest.mark.parametrize(
    "answer", ["D", "", "?", "blue", "(B) red", "(A) or (B)", "C is not right"]
)
def test_what_names_no_choice_is_wrong(answer: str) -> None:
    assert chosen(answer, COLOURS) is None
    assert not exact_match(answer, ["A"], COLOURS)


def test_a_letter_alone_is_a_letter_also_where_it_is_a_text() -> None:
    assert chosen("A", ("B", "A")) == 0
    assert chosen("(B) A", ("B", "A")) == 1


@given(st.integers(0, 2), st.integers(0, 2))
def test_letters_and_texts_agree(first: int, second: int) -> None:
    assert exact_match("ABC"[first], [COLOURS[second]], COLOURS) is (first == second)


def test_answers_are_matched_with_their_questions() -> None:
    references = [("A",), ("2", "a pair"), ("a dog",)]
    choices = [COLOURS, (), ()]
    found = exact_matches(["red", "A pair.", "cat"], references, choices)
    assert found.tolist() == [True, True, False]
    assert found.dtype == np.bool_
    with pytest.raises(ConfigError, match="1 answers to 3 questions"):
        exact_matches(["red"], references, choices)


def test_a_reference_that_is_no_choice_is_said() -> None:
    with pytest.raises(ConfigError, match="'yellow' is none of the choices red"):
        exact_match("A", ["yellow"], COLOURS)


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
