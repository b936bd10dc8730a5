from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import Dialogue
from privaudit.models.language.dialogue_tokens import LLAVA_TEMPLATE, DialogueTokens

P, I, A = 1, 2, 3  # noqa: E741


class Letters:
    """A token for each letter, and one for pictures."""

    def __init__(self, end: int | None = 2, pad: int | None = 0) -> None:
        self.eos_token_id, self.pad_token_id = end, pad

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        start = [1] if add_special_tokens else []
        pieces = text.replace("<image>", "\0")
        return start + [7 if c == "\0" else ord(c) for c in pieces]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(i) for i in token_ids if i > 2)

    def convert_tokens_to_ids(self, token: str) -> int:
        assert token == "<image>"
        return 7


def of(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_a_row_by_hand() -> None:
    write = DialogueTokens(Letters(), "{image}Q:{question} A:", parts=2)
    words = write([Dialogue("y?", ("no", "never")), Dialogue("?", ("yes",))])
    assert words.ids[0].tolist() == [1, 0, 0, *of("Q:y? A: no"), 2]
    assert words.kinds[0].tolist() == [I, P, P, *[I] * 7, *[A] * 4]
    assert words.ids[1].tolist() == [1, 0, 0, *of("Q:? A: yes"), 2]
    assert words.kinds[1].tolist() == [I, P, P, *[I] * 6, *[A] * 5]


def test_a_shorter_row_is_padded_at_the_right() -> None:
    write = DialogueTokens(Letters(pad=99), "{image}{question}", parts=1)
    words = write([Dialogue("q", ("ab",)), Dialogue("q", ("abcd",))])
    assert words.kinds.tolist() == [
        [I, P, I, A, A, A, A, 0, 0],
        [I, P, I, A, A, A, A, A, A],
    ]
    assert words.ids[0, -2:].tolist() == [99, 99]


def test_a_tokenizer_that_knows_pictures_reads_the_whole_text() -> None:
    write = DialogueTokens(Letters(), LLAVA_TEMPLATE, 2, image_token="<image>")
    words = write([Dialogue("y?", ("no",))])
    text = [*of("USER: "), 7, 7, *of("\ny? ASSISTANT: no")]
    assert words.ids[0].tolist() == [1, *text, 2]
    assert (words.kinds[0] == P).nonzero()[:, 0].tolist() == [7, 8]


def test_no_blank_follows_a_template_that_ends_with_one() -> None:
    write = DialogueTokens(Letters(), "{image}{question}\n", parts=1)
    words = write([Dialogue("q", ("a",))])
    assert words.ids[0].tolist() == [1, 0, *of("q\na"), 2]


def test_a_tokenizer_that_joins_prompt_and_answer_is_kept_from_it() -> None:
    class Joining(Letters):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            ids = super().encode(text, add_special_tokens=add_special_tokens)
            return [*ids[:-3], 500] if text.endswith("? n") else ids

    write = DialogueTokens(Joining(), "{image}{question}", parts=1)
    words = write([Dialogue("y?", ("n",))])
    assert words.ids[0].tolist() == [1, 0, *of("y? n"), 2]


def test_a_tokenizer_that_ends_every_text_ends_a_row_once() -> None:
    class Ending(Letters):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            ids = super().encode(text, add_special_tokens=add_special_tokens)
            return [*ids, 2] if add_special_tokens else ids

    write = DialogueTokens(Ending(), "{image}{question}", 1, image_token="<image>")
    words = write([Dialogue("y?", ("n",))])
    assert words.ids[0].tolist() == [1, 7, *of("y? n"), 2]


def test_a_template_with_its_own_start_gets_no_second_one() -> None:
    class Named(Letters):
        bos_token = "<s>"

    write = DialogueTokens(Named(), "<s>{image}{question}", parts=1)
    assert 1 not in write([Dialogue("y?", ("n",))]).ids


def test_without_a_padding_token_the_end_token_pads() -> None:
    write = DialogueTokens(Letters(pad=None), "{image}{question}", parts=1)
    words = write([Dialogue("q", ("ab",)), Dialogue("q", ("abc",))])
    assert words.ids[0, -1] == 2
    assert words.kinds[0, -1] == 0


def test_a_tokenizer_without_an_end_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no end token"):
        DialogueTokens(Letters(end=None), "{image}{question}", parts=1)


@pytest.mark.parametrize("template", ["{question}", "{image}", "{question}{image}"])
def test_a_template_without_its_places_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="has not"):
        DialogueTokens(Letters(), template, parts=1)


def test_a_caption_longer_than_the_context_is_refused() -> None:
    write = DialogueTokens(Letters(), "{image}{question}", parts=2, context=10)
    write([Dialogue("q", ("abcd",))])
    with pytest.raises(ConfigError, match=r"Record 1 takes 11 tokens \(4 .* takes 10"):
        write([Dialogue("q", ("a",)), Dialogue("q", ("abcde",))])


def test_empty_answers_and_marks_for_pictures_are_refused() -> None:
    write = DialogueTokens(Letters(), LLAVA_TEMPLATE, 2, image_token="<image>")
    with pytest.raises(ConfigError, match=r"Record 0 has 3 places .* '<image>'"):
        write([Dialogue("What is <image>?", ("n",))])
    with pytest.raises(ConfigError, match="answer of record 0 holds '<image>'"):
        write([Dialogue("What?", ("an <image>",))])
    with pytest.raises(ConfigError, match="answer of record 0 is empty"):
        write([Dialogue("What?", (" ",))])


def test_places_in_a_question_are_left_as_they_are() -> None:
    write = DialogueTokens(Letters(), "{image}{question}", parts=1)
    words = write([Dialogue("{image} {question}", ("n",))])
    assert words.ids[0].tolist() == [1, 0, *of("{image} {question} n"), 2]


def test_no_dialogues_make_no_rows() -> None:
    write = DialogueTokens(Letters(), "{image}{question}", parts=1)
    assert write([]).ids.shape == (0, 0)
