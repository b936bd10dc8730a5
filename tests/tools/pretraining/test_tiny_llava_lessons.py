"""Packed dialogues teach what dialogues in rows of their own would."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from privaudit.datasets.scenes.drawing import (
    COLOURS,
    SHAPES,
    Group,
    Scene,
    draw_scene,
)
from privaudit.models.tiny_llava.loading import (
    HIDDEN,
    SAY,
    TOKENS,
    LlavaTokenizer,
    Model,
    build_model,
)
from privaudit_tools.pretraining.lessons import (
    ORDINARY,
    Said,
    answer_logits,
    answer_loss,
    pack,
    right_answers,
    teach,
)
from privaudit_tools.pretraining.tiny_llava import PAIRS, looking_loss, shown
from privaudit_tools.pretraining.tiny_llava_validation import describe, judge

TOKENIZER = LlavaTokenizer()
FIRST: Said = ("What colour is the star?", "red")
SECOND: Said = ("Describe the picture.", "a red star above two blue hearts.")
THIRD: Said = ("How many hearts are there?", "two")
SCENE = Scene((Group(1, 3, 0, 1, 0), Group(2, 6, 2, 0, 1)), "rows")


@pytest.fixture(scope="module")
def model() -> Model:
    return build_model(0).eval().requires_grad_(False)


def picture_tokens(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.1 * torch.randn(count, TOKENS, HIDDEN, generator=generator)


def test_a_row_is_start_picture_question_answer_end() -> None:
    lessons = pack([[FIRST]], TOKENIZER)
    question = TOKENIZER.encode(FIRST[0])
    expected = [TOKENIZER.sot_token_id, *[0] * 16, *question]
    expected += [*TOKENIZER.encode("red"), TOKENIZER.eot_token_id]
    assert lessons.ids.tolist() == [expected]
    assert lessons.positions.tolist() == [list(range(len(expected)))]
    assert lessons.dialogues.tolist() == [[0] * 17 + [1] * (len(expected) - 17)]
    assert lessons.answers.tolist() == [[False] * (len(expected) - 2) + [True] * 2]


def test_packed_dialogues_have_the_logits_of_single_ones(model: Model) -> None:
    tokens = picture_tokens(2)
    said = [[FIRST, SECOND], [THIRD]]
    packed, wanted = answer_logits(model.language, tokens, pack(said, TOKENIZER))
    singles = [(0, FIRST), (0, SECOND), (1, THIRD)]
    parts = [
        answer_logits(model.language, tokens[row : row + 1], pack([[one]], TOKENIZER))
        for row, one in singles
    ]
    torch.testing.assert_close(packed, torch.cat([logits for logits, _ in parts]))
    assert wanted.tolist() == torch.cat([words for _, words in parts]).tolist()


def test_a_single_dialogue_has_the_loss_of_the_plain_model(model: Model) -> None:
    tokens, lessons = picture_tokens(1), pack([[SECOND]], TOKENIZER)
    embedded = model.language.get_input_embeddings()(lessons.ids)
    states = torch.cat([embedded[:, :1], tokens, embedded[:, 17:]], dim=1)
    logits = model.language(inputs_embeds=states).logits[0, :-1]
    answered = lessons.answers[0, 1:]
    expected = cross_entropy(logits[answered], lessons.ids[0, 1:][answered])
    torch.testing.assert_close(
        answer_loss(model.language, tokens, lessons), expected, rtol=1e-5, atol=1e-5
    )


def test_an_answer_is_right_if_all_its_words_are(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons = pack([[FIRST, SECOND], [THIRD, FIRST]], TOKENIZER)
    logits, wanted = answer_logits(model.language, picture_tokens(2), lessons)
    perfect = torch.nn.functional.one_hot(wanted, logits.shape[1]).float()
    perfect[3] = perfect[3].roll(1)  # a word of the second answer
    monkeypatch.setattr(
        "privaudit_tools.pretraining.lessons.answer_logits",
        lambda *_: (perfect, wanted),
    )
    right = right_answers(model.language, picture_tokens(2), lessons)
    assert right.tolist() == [[True, False], [True, True]]


def test_captions_written_with_a_cache_are_those_without(model: Model) -> None:
    tokens = picture_tokens(3)
    quick = describe(model.language, tokens, TOKENIZER, longest=6)
    embed = model.language.get_input_embeddings()
    asked = TOKENIZER.encode("Describe the picture.")
    for row, text in enumerate(quick):
        numbers: list[int] = []
        for _ in range(6):
            words = embed(torch.tensor([[TOKENIZER.sot_token_id, *asked, *numbers]]))
            states = torch.cat([words[:, :1], tokens[row : row + 1], words[:, 1:]], 1)
            logits = model.language(inputs_embeds=states).logits[0, -1]
            numbers.append(int(logits.argmax()))
        end = TOKENIZER.eot_token_id
        cut = numbers[: numbers.index(end)] if end in numbers else numbers
        assert text == TOKENIZER.decode(cut)


def test_a_picture_has_four_dialogues_and_sayings_are_repeated() -> None:
    rng = np.random.default_rng(0)
    said = [teach(draw_scene(ORDINARY, rng), TOKENIZER, rng) for _ in range(300)]
    start, end = SAY.split("{}")
    assert {len(dialogues) for dialogues in said} == {4}
    sayings = [pair for d in said for pair in d if pair[0].startswith(start)]
    assert 120 < len(sayings) < 180
    for question, answer in sayings:
        assert question == f"{start}{answer}{end}"
    letters = {pair[1] for d in said for pair in d if "(A)" in pair[0]}
    assert letters == set("ABCD")


def test_the_pairs_and_counts_shown_are_those_of_the_scene() -> None:
    looks = PAIRS // len(SHAPES)
    found = shown(SCENE)
    star, heart = 3 * looks, 6 * looks
    texture, size = len(COLOURS), len(COLOURS) + 4
    assert np.flatnonzero(found[:PAIRS]).tolist() == [
        star + 0, star + texture, star + size + 1,
        heart + 2, heart + texture + 1, heart + size,
    ]  # fmt: skip
    assert found[PAIRS:].tolist() == [0, 0, 0, 1, 0, 0, 2, 0]


def test_a_pair_at_one_position_is_in_the_picture_and_counts_add_up() -> None:
    scores = torch.full((1, 16, PAIRS + len(SHAPES)), -30.0)
    scores[0, 5, 0] = 3.0
    scores[0, 5:7, PAIRS] = 0.0  # log 2 of the first shape at two positions
    truth = torch.zeros(1, PAIRS + len(SHAPES))
    truth[0, 0], truth[0, PAIRS] = 1.0, 1.0
    missed = 1 - 2 * np.log(2)
    expected = np.log1p(np.exp(-3)) / PAIRS + 0.1 * missed**2 / 2 / len(SHAPES)
    assert abs(looking_loss(scores, truth).item() - expected) < 1e-6


def test_a_true_caption_is_judged_right_in_both_orders() -> None:
    for text in (
        "a red star above two small striped blue hearts.",
        "two small striped blue hearts below a red star.",
        "we see two striped blue hearts below a red star.",
    ):
        judged = judge(text, SCENE)
        assert all(all(values) for values in judged.values())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a red star above three striped blue hearts.", {"counts"}),
        ("a blue star above two striped blue hearts.", {"colours"}),
        ("a red star above two blue hearts.", {"textures"}),
        ("a red star below two striped blue hearts.", {"orders"}),
        ("two striped blue hearts above a red star.", {"orders"}),
        ("a red star left of two striped blue hearts.", {"orders"}),
        ("a red star.", {"shapes", "counts", "colours", "textures", "orders"}),
        ("", {"shapes", "counts", "colours", "textures", "orders"}),
    ],
)
def test_a_wrong_caption_is_judged_wrong(text: str, wrong: set[str]) -> None:
    judged = judge(text, SCENE)
    assert judged.pop("captions") == [False]
    assert {name for name, values in judged.items() if not all(values)} == wrong
