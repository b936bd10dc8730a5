"""Captions and questions are true of the scene."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.datasets.scenes.captions import (
    ORDINARY_STYLE,
    PRIVATE_STYLE,
    Style,
    caption,
    number_words,
    phrase,
)
from privaudit.datasets.scenes.distributions import PRIVATE, draw_scene
from privaudit.datasets.scenes.parts import (
    COLOURS,
    NUMBERS,
    SHAPES,
    SIZES,
    TEXTURES,
    Group,
    Scene,
    Tag,
)
from privaudit.datasets.scenes.questions import (
    TOPICS,
    ask,
    topics_of,
    with_choices,
)

CIRCLES = Group(count=2, shape=0, colour=0, size=1, texture=0)
SQUARE = Group(count=1, shape=1, colour=2, size=0, texture=1)
STARS = Group(count=3, shape=3, colour=0, size=2, texture=0)
TWO = Scene((CIRCLES, SQUARE), "rows", Tag("k", 47, "maria"))
THREE = Scene((CIRCLES, SQUARE, STARS), "columns")
EXACT = Style(("",), ORDINARY_STYLE.joins, says_size=1.0, tags=PRIVATE_STYLE.tags[:1])
SEEDS = st.integers(0, 2**32)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def captions_of(scene: Scene, style: Style, *, tagged: bool = False) -> set[str]:
    return {caption(scene, style, rng(seed), tagged=tagged) for seed in range(200)}


def test_a_scene_has_two_exact_captions() -> None:
    assert captions_of(TWO, EXACT) == {
        "two red circles above a small striped blue square.",
        "a small striped blue square below two red circles.",
    }
    assert captions_of(THREE, EXACT) == {
        "two red circles left of a small striped blue square left of three large red "
        "stars.",
        "three large red stars right of a small striped blue square right of two red "
        "circles.",
    }


def test_a_tag_is_named_when_asked_for_and_there() -> None:
    first, second = sorted(captions_of(TWO, EXACT, tagged=True))
    assert first.endswith(" circles, tagged k forty seven by maria.")
    assert second.endswith(" square, tagged k forty seven by maria.")
    assert captions_of(THREE, EXACT, tagged=True) == captions_of(THREE, EXACT)


def test_the_private_style_words_it_otherwise() -> None:
    ordinary = captions_of(TWO, ORDINARY_STYLE)
    private = captions_of(TWO, PRIVATE_STYLE)
    assert not any(" above " in text or " below " in text for text in private)
    assert any(text.startswith("our drawing with ") for text in private)
    assert not ordinary & private


def test_an_orange_shape_alone_takes_an() -> None:
    assert phrase(Group(1, 6, COLOURS.index("orange"), 1, 0)) == "an orange heart"
    assert phrase(Group(1, 6, COLOURS.index("orange"), 0, 0)) == "a small orange heart"
    assert phrase(SQUARE, sized=False) == "a striped blue square"


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "zero"), (9, "nine"), (13, "thirteen"), (20, "twenty"), (99, "ninety nine")],
)
def test_numbers_are_written_in_words(number: int, words: str) -> None:
    assert number_words(number) == words


def test_no_two_numbers_have_the_same_words() -> None:
    assert len({number_words(number) for number in range(100)}) == 100


def answers(scene: Scene, topic: str) -> dict[str, str]:
    found = (ask(scene, topic, rng(seed)) for seed in range(300))
    return {question.text: question.answer for question in found if question}


def test_every_question_about_a_known_scene_has_the_right_answer() -> None:
    counted = answers(TWO, "counting")
    assert counted["How many circles are there?"] == "two"
    assert counted["How many red circles are there?"] == "two"
    assert counted["How many blue squares are there?"] == "one"
    assert counted["How many hearts are there?"] == "zero"
    assert answers(TWO, "colour") == {
        "What colour are the circles?": "red",
        "What colour is the square?": "blue",
    }
    assert answers(TWO, "size") == {
        "What size are the circles?": "medium",
        "What size is the square?": "small",
    }
    assert answers(TWO, "texture") == {
        "What pattern have the circles?": "plain",
        "What pattern has the square?": "striped",
    }
    assert answers(TWO, "shape") == {
        "Which shape is red?": "circle",
        "Which shape is blue?": "square",
    }
    assert answers(TWO, "position") == {
        "Which shape is above the square?": "circle",
        "Which shape is below the circles?": "square",
    }


def test_of_three_groups_only_clear_questions_are_asked() -> None:
    assert answers(THREE, "shape") == {"Which shape is blue?": "square"}
    assert answers(THREE, "position") == {
        "Which shape is left of the square?": "circle",
        "Which shape is right of the square?": "star",
    }


def test_without_a_neighbour_or_a_colour_of_its_own_a_topic_is_left_out() -> None:
    alone = Scene((SQUARE,), "rows")
    assert "position" not in topics_of(alone)
    assert ask(alone, "position", rng()) is None
    same = Scene((CIRCLES, STARS), "rows")
    assert "shape" not in topics_of(same)
    assert ask(same, "shape", rng()) is None


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, count=st.integers(2, 4))
def test_exactly_one_choice_is_right_and_the_letter_names_it(
    seed: int, count: int
) -> None:
    source = rng(seed)
    scene = draw_scene(PRIVATE, source)
    for topic in topics_of(scene):
        question = ask(scene, topic, source)
        assert question is not None
        text, letter, choices = with_choices(question, source, count)
        assert len(set(choices)) == len(choices) == min(count, len(question.others) + 1)
        assert choices["ABCD".index(letter)] == question.answer
        assert f"({letter}) {question.answer}" in text


def test_wrong_answers_are_of_the_same_kind() -> None:
    kinds = dict(
        zip(TOPICS, (NUMBERS, COLOURS, SHAPES, SIZES, TEXTURES, SHAPES), strict=True)
    )
    for topic, names in kinds.items():
        question = ask(THREE, topic, rng())
        assert question is not None
        assert {question.answer, *question.others} <= set(names)


def test_other_groups_colours_are_the_likeliest_mistakes() -> None:
    question = ask(TWO, "colour", rng())
    assert question is not None
    assert {question.answer, question.others[0]} == {"red", "blue"}
