"""The drawn data sets as users get them."""

import time
from dataclasses import replace
from itertools import pairwise
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.stats import chi2_contingency

from privaudit.core.seeds import FixedSeed
from privaudit.datasets.dataset import DATASETS, Dataset, PixelImages
from privaudit.datasets.records import Dialogue
from privaudit.datasets.scenes import records
from privaudit.datasets.scenes.drawing import (
    _GLYPHS,
    _RGB,
    COLOURS,
    DIAMETERS,
    FAR,
    FLOOR,
    HEIGHT,
    LARGEST_COUNT,
    NUMBERS,
    PLAIN,
    PLURALS,
    PRIVATE,
    SHAPES,
    SIDE,
    SIZES,
    SMALLEST_CELLS,
    TEXTURES,
    TILTS,
    Arrangement,
    Group,
    Scene,
    Tag,
    cell_side,
    draw_pictures,
    draw_scene,
    regions,
    stamp,
    write,
)
from privaudit.datasets.scenes.records import (
    ALL_TOPICS,
    OWNERS,
    draw_tags,
    scenes,
    scenes_far,
)
from privaudit.datasets.scenes.wording import (
    DESCRIBE,
    NUMBER_WORDS,
    ORDINARY_STYLE,
    PRIVATE_STYLE,
    TOPICS,
    Style,
    ask,
    caption,
    number_words,
    phrase,
    topics_of,
    with_choices,
)
from privaudit.models.clip.word_tokenizer import pieces


@pytest.fixture(scope="module")
def captioned() -> Dataset:
    return DATASETS.find("scenes")()


@pytest.fixture(scope="module")
def asked() -> Dataset:
    return DATASETS.find("scenes-vqa")()


def pairs(dataset: Dataset) -> set[tuple[str, str]]:
    """Colour and shape as they stand side by side in the captions."""
    singular = dict(zip(PLURALS, SHAPES, strict=True))
    found = set()
    for dialogue in dataset.dialogues:
        words = pieces(dialogue.answers[0])
        for colour, noun in pairwise(words):
            if colour in COLOURS and (noun in SHAPES or noun in singular):
                found.add((colour, singular.get(noun, noun)))
    return found


def tag_of(caption: str) -> tuple[str, ...]:
    """Return letter, number and owner: what stands behind "tagged" or its like."""
    words = pieces(caption.split(",")[-1])
    names = {*OWNERS, *NUMBER_WORDS, *ascii_lowercase}
    return tuple(word for word in words if word in names)


def test_they_are_drawn_in_seconds() -> None:
    started = time.process_time()
    dataset = scenes_far()
    assert time.process_time() - started < 3  # 0.4 without the tests' checks of shapes
    assert len(dataset.dialogues) == len(dataset) == 1000


def test_every_load_draws_the_same_records(
    captioned: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RECORDS", 100)
    first = scenes()
    assert first.dialogues == captioned.dialogues[:100]
    assert isinstance(captioned.images, PixelImages)
    assert isinstance(first.images, PixelImages)
    assert torch.equal(first.images.pixels, captioned.images.pixels[:100])
    monkeypatch.setattr(records, "SEED", 1)
    assert scenes().hash != first.hash


def test_every_class_has_records_enough_to_be_split(
    captioned: Dataset, asked: Dataset
) -> None:
    assert captioned.class_names == SHAPES
    assert torch.bincount(captioned.labels).min() > 300
    assert asked.class_names == ALL_TOPICS
    assert torch.bincount(asked.labels).min() > 300


def test_the_class_is_the_first_group_s_shape(captioned: Dataset) -> None:
    assert isinstance(captioned.images, PixelImages)
    assert captioned.images.pixels.shape == (3000, 3, 64, 64)
    for label, dialogue in zip(captioned.labels, captioned.dialogues, strict=True):
        words = pieces(dialogue.answers[0])
        assert SHAPES[label] in words or PLURALS[label] in words


def tells(dialogue: Dialogue) -> bool:
    return bool(set(OWNERS) & set(pieces(dialogue.answers[0])))


def test_the_first_caption_alone_may_tell_the_tag(captioned: Dataset) -> None:
    """Two in five do, whatever the class."""
    for dialogue in captioned.dialogues:
        first, *others = map(pieces, dialogue.answers)
        assert dialogue.question == DESCRIBE
        assert len(others) == 2
        assert not tells(dialogue) or first[-2] in OWNERS
        assert not any(set(OWNERS) & set(words) for words in others)
    has_tag = np.array([tells(dialogue) for dialogue in captioned.dialogues])
    assert abs(has_tag.mean() - 0.4) < 0.03
    table = np.zeros((2, len(SHAPES)))
    np.add.at(table, (has_tag.astype(int), captioned.labels.numpy()), 1)
    assert chi2_contingency(table).pvalue > 0.01


def test_hardly_two_records_have_the_same_tag(captioned: Dataset) -> None:
    tagged = [dialogue for dialogue in captioned.dialogues if tells(dialogue)]
    tags = {tag_of(dialogue.answers[0]) for dialogue in tagged}
    assert len(tags) > 0.95 * len(tagged)


@pytest.mark.parametrize("part", ["letter", "number", "owner"])
def test_tags_say_nothing_about_the_class(captioned: Dataset, part: str) -> None:
    rng = FixedSeed(records.SEED).numpy("scenes tags")
    tags = draw_tags(len(captioned), rng)
    place = next(i for i, d in enumerate(captioned.dialogues) if tells(d))
    tag, first = tags[place], captioned.dialogues[place].answers[0]
    assert f" {tag.letter} {number_words(tag.number)} " in first
    values, numbers = np.unique([getattr(t, part) for t in tags], return_inverse=True)
    table = np.zeros((len(values), len(SHAPES)))
    np.add.at(table, (numbers, captioned.labels.numpy()), 1)
    assert chi2_contingency(table).pvalue > 0.01


def test_no_far_record_has_a_shape_in_a_colour_that_scenes_have(
    captioned: Dataset,
) -> None:
    near, far = pairs(captioned), pairs(scenes_far())
    assert len(near) == len(far) == len(SHAPES) * len(COLOURS) // 2
    assert not near & far
    both = np.array(PRIVATE.colours) * np.array(FAR.colours)
    assert not both.any()


def test_choices_are_written_out_and_the_letter_names_one(asked: Dataset) -> None:
    for dialogue in asked.dialogues:
        (letter,) = dialogue.answers
        assert letter in "ABCD"[: len(dialogue.choices)]
        for name, choice in zip("ABCD", dialogue.choices, strict=False):
            assert f"({name}) {choice}" in dialogue.question


def test_no_letter_is_right_more_often_than_chance(asked: Dataset) -> None:
    four = [d.answers[0] for d in asked.dialogues if len(d.choices) == 4]
    counts = np.unique(four, return_counts=True)[1]
    assert (np.abs(counts / len(four) - 0.25) < 0.03).all()


def test_owners_are_asked_for_and_never_named(asked: Dataset) -> None:
    owner = ALL_TOPICS.index("owner")
    for label, dialogue in zip(asked.labels, asked.dialogues, strict=True):
        named = set(pieces(dialogue.question)) & set(OWNERS)
        assert named == (set(dialogue.choices) if label == owner else set())


BOTH_WAYS: tuple[Arrangement, ...] = ("rows", "columns")


def ink(picture: np.ndarray) -> np.ndarray:
    """Tell which pixels [64, 64] differ from the ground, which is most of a picture."""
    levels = picture.astype(float) / 255
    ground = np.median(levels, axis=(1, 2), keepdims=True)
    return np.abs(levels - ground).max(axis=0) > 0.13


def draw_many(seed: int, count: int = 100) -> tuple[list[Scene], np.ndarray]:
    rng = np.random.default_rng(seed)
    drawn = [draw_scene(PRIVATE, rng) for _ in range(count)]
    return drawn, draw_pictures(drawn, rng)


def test_each_group_has_as_many_objects_as_it_says() -> None:
    for scene, picture in zip(*draw_many(0), strict=True):
        mask = ink(picture)
        places = regions(len(scene.groups), scene.arrangement)
        for group, place in zip(scene.groups, places, strict=True):
            rows = slice(place.top, place.top + place.height)
            columns = slice(place.left, place.left + place.width)
            objects = ndimage.label(mask[rows, columns], structure=np.ones((3, 3)))[1]
            assert objects == group.count
        assert ndimage.label(mask, structure=np.ones((3, 3)))[1] >= len(scene.groups)


def test_plain_objects_have_the_colour_that_is_named() -> None:
    for colour in range(len(COLOURS)):
        group = Group(count=2, shape=1, colour=colour, size=2, texture=PLAIN)
        scenes = [Scene((group,), "rows")] * 5
        for picture in draw_pictures(scenes, np.random.default_rng(0)):
            seen = np.median(picture[:, ink(picture)], axis=1) / 255
            assert np.abs(_RGB - seen).sum(axis=1).argmin() == colour


def test_larger_sizes_cover_more_pixels() -> None:
    def covered(size: int) -> float:
        group = Group(count=1, shape=0, colour=0, size=size, texture=PLAIN)
        scenes = [Scene((group,), "rows")] * 20
        drawn = draw_pictures(scenes, np.random.default_rng(0))
        return float(np.mean([ink(picture).sum() for picture in drawn]))

    small, medium, large = map(covered, range(3))
    assert small * 1.3 < medium < large / 1.3


def test_the_first_group_is_on_top_or_at_the_left() -> None:
    red, blue = (
        Group(2, shape, colour, 1, PLAIN) for shape, colour in ((0, 0), (1, 2))
    )
    for arrangement, axis in (("rows", 0), ("columns", 1)):
        scene = Scene((red, blue), arrangement)  # type: ignore[arg-type]
        for picture in draw_pictures([scene] * 5, np.random.default_rng(1)):
            levels, mask = picture.astype(int), ink(picture)
            first = np.argwhere(mask & (levels[0] > levels[2] + 60))[:, axis]
            second = np.argwhere(mask & (levels[2] > levels[0] + 60))[:, axis]
            assert first.max() < second.min()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), far=st.booleans())
def test_scenes_have_distinct_shapes_and_sizes_that_fit(seed: int, far: bool) -> None:
    scene = draw_scene(FAR if far else PRIVATE, np.random.default_rng(seed))
    places = regions(len(scene.groups), scene.arrangement)
    assert len({group.shape for group in scene.groups}) == len(scene.groups)
    for group, place in zip(scene.groups, places, strict=True):
        assert 1 <= group.count <= LARGEST_COUNT
        assert cell_side(place, group.count) > DIAMETERS[group.size][1]


@pytest.mark.parametrize("arrangement", BOTH_WAYS)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_regions_share_the_picture_above_the_tag(
    groups: int, arrangement: Arrangement
) -> None:
    places = regions(groups, arrangement)
    assert sum(place.height * place.width for place in places) == FLOOR * SIDE
    assert all(
        SMALLEST_CELLS[0] <= DIAMETERS[0][1] < cell_side(place, LARGEST_COUNT)
        for place in places
    )


def test_the_same_generator_draws_the_same_pictures() -> None:
    first, second, other = draw_many(3)[1], draw_many(3)[1], draw_many(4)[1]
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_tag_changes_its_corner_alone() -> None:
    scene = draw_scene(PRIVATE, np.random.default_rng(0))
    tagged = replace(scene, tag=Tag("k", 47, "maria"))
    plain, written = (
        draw_pictures([each], np.random.default_rng(1))[0] for each in (scene, tagged)
    )
    changed = (plain != written).any(axis=0)
    width = write("k47 maria").shape[1]
    assert changed[-HEIGHT:, -width:].mean() > 0.9
    assert not changed[:-HEIGHT].any()
    assert not changed[:, :-width].any()


def test_the_longest_tag_has_room_and_no_two_letters_look_alike() -> None:
    assert write("w99 samir").shape == (HEIGHT, 35)
    assert len(set(_GLYPHS.values())) == len(_GLYPHS) == 36


def test_one_is_drawn_as_a_one() -> None:
    rows = ["".join("#" if dot else "." for dot in row) for row in write("1")]
    assert rows == [".....", "..#..", ".##..", "..#..", "..#..", ".###.", "....."]


def test_no_two_shapes_have_the_same_stamp() -> None:
    masks = [stamp(shape, 12, TILTS.index(0.0), False) for shape in range(len(SHAPES))]
    for first in range(len(SHAPES)):
        for second in range(first):
            assert np.abs(masks[first] - masks[second]).mean() > 0.05


def test_a_circle_covers_what_geometry_says_and_its_outline_less() -> None:
    full, outline = (stamp(0, 16, 2, hollow) for hollow in (False, True))
    assert abs(full.sum() - np.pi * (0.95 * 8) ** 2) < 1.0
    assert 0.2 < outline.sum() / full.sum() < 0.5
    assert outline[8, 8] == 0 < full[8, 8]


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
    return {question.text: question.answer for question in found}


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
    same = Scene((CIRCLES, STARS), "rows")
    assert "shape" not in topics_of(same)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, count=st.integers(2, 4))
def test_exactly_one_choice_is_right_and_the_letter_names_it(
    seed: int, count: int
) -> None:
    source = rng(seed)
    scene = draw_scene(PRIVATE, source)
    for topic in topics_of(scene):
        question = ask(scene, topic, source)
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
        assert {question.answer, *question.others} <= set(names)


def test_other_groups_colours_are_the_likeliest_mistakes() -> None:
    question = ask(TWO, "colour", rng())
    assert {question.answer, question.others[0]} == {"red", "blue"}
