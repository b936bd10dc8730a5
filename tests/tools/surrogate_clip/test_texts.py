import pytest
import torch
from torch import Tensor

from privaudit.models.clip.text_tower import text_tower
from privaudit_tools.surrogate_clip.storage import (
    BankShape,
    SurrogateShape,
    TextSettings,
    build_model,
)
from privaudit_tools.surrogate_clip.texts import (
    TEMPLATES,
    TrainingTexts,
    encode,
    make_tokenizer,
)

NAMES = ("cat", "Palm_tree", "crab", "airplane carrier 2")
TOKENIZER = make_tokenizer(NAMES)
SHAPE = SurrogateShape(BankShape(3))
MODEL = build_model(SHAPE, TOKENIZER.vocab_size, TOKENIZER.context_length).eval()
TOWER = text_tower(MODEL)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_word_of_names_and_templates_is_one_token() -> None:
    assert len(TOKENIZER.encode("palm tree")) == 2
    assert len(TOKENIZER.encode("a black and white photo of a crab.")) == 9


def test_rows_have_room_for_sixteen_vectors_and_the_longest_name() -> None:
    longest = len(TOKENIZER.encode("airplane carrier 2."))
    assert 1 + 16 + longest + 1 <= TOKENIZER.context_length


def test_templates_are_encoded_as_open_clip_does() -> None:
    texts = TrainingTexts(TOKENIZER, NAMES, TextSettings(templates=1))
    found = encode(TOWER, texts.draw(TOWER, seeded()))
    written = torch.stack(
        [
            MODEL.encode_text(
                TOKENIZER([t.format(name.replace("_", " ")) for t in TEMPLATES])
            )
            for name in NAMES
        ]
    )
    differences: Tensor = (written - found[:, None]).abs().amax(-1)
    assert (differences.min(dim=1).values < 1e-5).all()


def test_a_context_is_the_same_for_all_classes_and_the_names_follow() -> None:
    settings = TextSettings(templates=0, words=0, longest=1)
    embedded, ends = TrainingTexts(TOKENIZER, NAMES, settings).draw(TOWER, seeded())
    assert (embedded[:, 1] == embedded[0, 1]).all()
    assert ends.tolist() == [4, 5, 4, 6]
    (cat,) = TOKENIZER.encode("cat")
    assert torch.equal(embedded[0, 2], TOWER.token_embedding.weight[cat])
    assert embedded.shape[1] == 7


@pytest.mark.parametrize("words", [0.0, 1.0])
def test_contexts_differ_in_length_and_content_by_the_generator(words: float) -> None:
    texts = TrainingTexts(TOKENIZER, NAMES, TextSettings(templates=0, words=words))
    drawn = [texts.draw(TOWER, seeded(seed)) for seed in range(8)]
    assert len({int(one.ends[0]) for one in drawn}) > 3
    again = texts.draw(TOWER, seeded(0))
    assert torch.equal(again.embedded, drawn[0].embedded)


def test_words_of_a_context_can_be_trained_and_noise_cannot() -> None:
    model = build_model(SHAPE, TOKENIZER.vocab_size, TOKENIZER.context_length)
    tower = text_tower(model)
    settings = TextSettings(templates=0, words=1, jitter=0, longest=1)
    texts = TrainingTexts(TOKENIZER, NAMES, settings).draw(tower, seeded())
    assert texts.embedded[0, 1].requires_grad
    weights = tower.token_embedding.weight
    assert (weights == texts.embedded[0, 1]).all(1).any()
