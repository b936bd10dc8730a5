"""What is drawn is what the scene says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from privaudit.datasets.scenes.distributions import ORDINARY, PRIVATE, draw_scene
from privaudit.datasets.scenes.drawing import _RGB, draw_pictures
from privaudit.datasets.scenes.lettering import _GLYPHS, HEIGHT, write
from privaudit.datasets.scenes.parts import (
    COLOURS,
    LARGEST_COUNT,
    PLAIN,
    SHAPES,
    Arrangement,
    Group,
    Scene,
    Tag,
)
from privaudit.datasets.scenes.regions import (
    DIAMETERS,
    FLOOR,
    SIDE,
    SMALLEST_CELLS,
    cell_side,
    regions,
)
from privaudit.datasets.scenes.stamps import TILTS, stamp

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
@given(seed=st.integers(0, 2**32), ordinary=st.booleans())
def test_scenes_have_distinct_shapes_and_sizes_that_fit(
    seed: int, ordinary: bool
) -> None:
    scene = draw_scene(ORDINARY if ordinary else PRIVATE, np.random.default_rng(seed))
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
