import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.report.galleries.token_entropy import STEPS, ColouredText, coloured_texts

NAME = "Rényi entropy of order 2"


class Words(HTMLParser):
    """The text of a fragment, and whether every element is closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def one(*pairs: tuple[str, float | None], heading: str = "record 1") -> ColouredText:
    pieces, entropies = zip(*pairs, strict=True)
    return ColouredText(heading, pieces, entropies)


def background(page: str, piece: str) -> str | None:
    found = re.search(rf'background:(#\w+);color:#\w+">{piece}<', page)
    return found[1] if found else None


def test_sure_words_are_pale_and_unsure_ones_dark() -> None:
    page = coloured_texts([one(("two", 0.0), (" red", 1.0), (" dots", 2.0))], NAME)
    assert background(page, "two") == STEPS[0][0]
    assert background(page, " red") == STEPS[3][0]
    assert background(page, " dots") == STEPS[-1][0]
    assert 'title="1.000 nats"' in page


def test_the_legend_says_each_colours_numbers() -> None:
    page = coloured_texts([one(("a", 3.5))], NAME)
    text = Words(page).text
    assert f"{NAME}, nats: 0.00 to 0.500.50 to 1.00" in text
    assert "3.00 and more" in text
    for back, _ in STEPS:
        assert back in page


def test_a_piece_without_an_entropy_has_no_colour() -> None:
    page = coloured_texts([one(("first", None), (" next", 1.0))], NAME)
    assert background(page, "first") is None
    assert "first" in page


def test_nothing_but_zeros_and_nothing_at_all_can_be_shown() -> None:
    assert background(coloured_texts([one(("a", 0.0))], NAME), "a") == STEPS[0][0]
    assert NAME in coloured_texts([], NAME)


@given(st.lists(st.tuples(st.text(), st.floats(0, 50)), min_size=1), st.text())
def test_any_text_is_shown_as_it_is(pairs: list[tuple[str, float]], name: str) -> None:
    page = Words(coloured_texts([one(*pairs, heading=name)], NAME))
    assert page.open == []
    written = "".join(piece for piece, _ in pairs)
    assert page.text.replace("\n", "").endswith((name + written).replace("\n", ""))


@pytest.mark.parametrize("step", STEPS)
def test_letters_stand_out_from_every_colour(step: tuple[str, str]) -> None:
    """By WCAG's contrast of luminances; 4.5 to 1 is asked of small text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted(map(luminance, step), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 4.5


def test_the_colours_darken_from_sure_to_unsure() -> None:
    greys = [sum(int(back[i : i + 2], 16) for i in (1, 3, 5)) for back, _ in STEPS]
    assert greys == sorted(greys, reverse=True)


def test_pieces_and_entropies_must_be_as_many() -> None:
    with pytest.raises(ConfigError, match="2 pieces and 1 entropies"):
        coloured_texts([ColouredText("x", ("a", "b"), (1.0,))], NAME)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_an_entropy_that_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="a colour needs a finite number"):
        coloured_texts([one(("a", wrong))], NAME)


def test_a_picture_and_a_mark_stand_beside_the_text() -> None:
    text = ColouredText("x", ("a",), (1.0,), tag='"<b>', picture='data:"<i>')
    page = coloured_texts([text], NAME)
    assert Words(page).open == []
    assert "&lt;b&gt;" in page
    assert 'src="data:&quot;&lt;i&gt;"' in page
