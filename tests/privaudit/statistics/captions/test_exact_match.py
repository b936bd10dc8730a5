import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.exact_match import chosen, exact_match, exact_matches

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
     "the answer is dark blue"],
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
