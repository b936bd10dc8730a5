from functools import cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit_tools.pretraining.captions import (
    ATTRIBUTES,
    COLOURS,
    GROUND,
    INK,
    KIND,
    LETTER,
    MANNER,
    NOT_SAID,
    SCAN,
    TEXTURE,
    true_of,
    write_captions,
)
from privaudit_tools.pretraining.drawing import DrawingSettings, Pictures, draw
from privaudit_tools.pretraining.marks import (
    DIGITS,
    FIELD_SIZE,
    FIRST_SHAPE,
    FONTS,
    HANDWRITTEN,
    HELD_OUT_FONTS,
    KINDS,
    SHAPES,
    Marks,
    build_marks,
)
from privaudit_tools.pretraining.strokes import (
    VARIANTS,
    Polylines,
    Variant,
    distance_field,
    variants_for,
    write_variant,
)


@cache
def marks() -> Marks:
    return build_marks(torch.Generator().manual_seed(0), copies=2)


def drawn(seed: int, count: int = 40, **choices: float) -> Pictures:
    generator = torch.Generator().manual_seed(seed)
    return draw(marks(), count, generator, DrawingSettings(**choices))


def test_the_same_generator_draws_the_same_pictures() -> None:
    first, second, other = drawn(3), drawn(3), drawn(4)
    assert torch.equal(first.pixels, second.pixels)
    assert torch.equal(first.attributes, second.attributes)
    assert not torch.equal(first.pixels, other.pixels)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 20))
def test_pixels_lie_between_0_and_1_and_attributes_exist(seed: int, count: int) -> None:
    pictures = drawn(seed, count)
    assert pictures.pixels.shape == (count, 3, 32, 32)
    assert 0 <= pictures.pixels.min() <= pictures.pixels.max() <= 1
    assert pictures.attributes[:, KIND].max() < KINDS
    assert pictures.attributes[:, INK].max() < len(COLOURS)


def test_a_share_of_1_draws_only_digits_by_hand_as_scans() -> None:
    table = drawn(0, digits=1, letters=0, handwritten=1, scans=1).attributes
    assert (table[:, KIND] < 10).all()
    assert (table[:, MANNER] == HANDWRITTEN).all()
    assert (table[:, SCAN] == 1).all()
    assert (table[:, TEXTURE] == 0).all()


def test_without_digits_and_letters_only_shapes_are_drawn() -> None:
    table = drawn(0, digits=0, letters=0).attributes
    assert (table[:, KIND] >= FIRST_SHAPE).all()
    assert (table[:, LETTER] < 0).all()


def test_a_white_digit_on_black_is_lighter_inside_than_at_its_corners() -> None:
    pictures = drawn(0, 400, digits=1, letters=0, scans=1)
    on_black = pictures.attributes[:, [INK, GROUND]] == torch.tensor([1, 0])
    chosen = pictures.pixels[on_black.all(1)].mean((0, 1))
    assert chosen[12:20, 12:20].mean() > chosen[:3, :3].mean() + 0.2


def test_every_kind_has_marks_and_a_pick_is_of_the_group_asked_for() -> None:
    groups = torch.arange(KINDS) * 2
    chosen = marks().pick(groups, torch.Generator().manual_seed(0))
    assert torch.equal(marks().groups[chosen], groups)


def test_a_mark_has_ink_in_the_middle_of_its_field_and_none_at_the_edge() -> None:
    assert marks().fields.shape[1:] == (FIELD_SIZE, FIELD_SIZE)
    border = torch.cat([marks().fields[:, 0], marks().fields[:, -1]], dim=1)
    assert (border.amin(1) > marks().thickest).all()
    assert (marks().fields.amin((1, 2)) < marks().thickest).all()


def test_validation_shares_no_font_and_no_writing_variant_with_training() -> None:
    assert not set(FONTS) & set(HELD_OUT_FONTS)
    for digit in range(10):
        seen = variants_for(digit, held_out=False)
        assert variants_for(digit, held_out=True)[0] not in seen
        assert len(seen) == len(VARIANTS[digit]) - 1


def test_without_jitter_a_straight_line_has_the_distances_of_geometry() -> None:
    lines = Polylines(torch.tensor([[[0.0, -1.0]]]), torch.tensor([[[0.0, 1.0]]]))
    grid = torch.tensor([[[0.0, 0.0], [3.0, 0.5]], [[0.0, 2.0], [3.0, 5.0]]])
    expected = torch.tensor([[[0.0, 3.0], [1.0, 5.0]]])
    torch.testing.assert_close(distance_field(lines, grid), expected)


def test_writing_fills_its_box_and_follows_its_generator() -> None:
    variant = Variant((((0.5, 0.0), (0.2, 0.4), (0.5, 1.0)),))
    first = write_variant(variant, 5, torch.Generator().manual_seed(1))
    again = write_variant(variant, 5, torch.Generator().manual_seed(1))
    points = torch.cat([first.starts, first.ends], dim=1)
    torch.testing.assert_close(points.amax((1, 2)), torch.ones(5))
    torch.testing.assert_close(points.amin((1, 2)), -torch.ones(5))
    assert torch.equal(first.starts, again.starts)


def test_a_caption_is_true_of_its_picture_and_names_what_it_shows() -> None:
    pictures = drawn(7, 200)
    captions = write_captions(pictures.attributes, torch.Generator().manual_seed(2))
    assert true_of(captions.said, pictures.attributes).diagonal().all()
    names = [*DIGITS, *SHAPES, *COLOURS]
    for text, said, shown in zip(
        captions.texts,
        captions.said.tolist(),
        pictures.attributes.tolist(),
        strict=True,
    ):
        words = text.rstrip(".").split()
        named = {word for word in words if word in names}
        allowed = {COLOURS[shown[INK]], COLOURS[shown[GROUND]]}
        if shown[KIND] < 10:
            allowed.add(DIGITS[shown[KIND]])
        if shown[KIND] >= FIRST_SHAPE:
            allowed.add(SHAPES[shown[KIND] - FIRST_SHAPE])
        assert named <= allowed
        assert said[KIND] != NOT_SAID or said[LETTER] != NOT_SAID


def test_a_caption_that_names_only_the_kind_is_true_of_every_picture_of_it() -> None:
    said = torch.full((1, ATTRIBUTES), NOT_SAID)
    said[0, KIND] = 5
    pictures = torch.zeros(3, ATTRIBUTES, dtype=torch.long)
    pictures[:, KIND] = torch.tensor([5, 6, 5])
    pictures[:, INK] = torch.tensor([1, 2, 3])
    assert true_of(said, pictures).flatten().tolist() == [True, False, True]
    said[0, INK] = 3
    assert true_of(said, pictures).flatten().tolist() == [False, False, True]


def test_chatter_moves_a_caption_without_changing_what_it_says() -> None:
    table = drawn(1, 10).attributes
    plain = write_captions(table, torch.Generator().manual_seed(0))
    moved = write_captions(table, torch.Generator().manual_seed(0), chatter=6)
    assert len(moved.texts[0].split()) >= 7
    assert len(plain.texts) == len(moved.texts) == 10
    assert not set(DIGITS) & set(" ".join(moved.texts).split()[:6])


def test_marks_are_sorted_so_that_groups_can_be_searched() -> None:
    assert isinstance(marks(), Marks)
    assert (marks().groups.diff() >= 0).all()
