from pathlib import Path

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import PixelImages
from privaudit.datasets.dialogues import ANSWER, Dialogue
from privaudit.federated.query import questions
from privaudit.models.feature_cache import cached_tokens, content_hash
from privaudit.models.interfaces import Tuning
from privaudit.models.language.captioning_vlm import CaptioningVLM, VectorProjector
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.loaded_models import load_captioner


@pytest.fixture(scope="module")
def tiny() -> CaptioningVLM:
    return load_captioner()


def test_the_embedded_model_reads_pictures_and_words(
    tiny: CaptioningVLM, tmp_path: Path
) -> None:
    drawn = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    pictures = PixelImages(drawn)
    tokens = cached_tokens(tiny, pictures, tmp_path)
    assert tokens.shape == (2, tiny.parts, tiny.width)
    assert torch.equal(cached_tokens(tiny, pictures, tmp_path), tokens)
    dialogues = [
        Dialogue("how many circles are there?", ("two",)),
        Dialogue("what do you see?", ("a red circle",)),
    ]
    words = tiny.words(dialogues)
    ids = words.ids[1][words.kinds[1] == ANSWER]
    assert tiny.language.decode(ids.tolist()) == "a red circle"
    logits = tiny.language.logits(tokens[None], words.repeated(1), Tuning())
    assert logits.shape == (1, 2, words.length, tiny.language.vocabulary)
    prompts = questions(words).repeated(1)
    assert len(tiny.language.generate(tokens[None], prompts, Tuning(), 5)[0]) == 2


def test_places_and_parts_must_agree(language: StackedLanguageModel) -> None:
    words = DialogueTokens(language.tokenizer, "{image}{question}", parts=3)
    eye = VectorProjector(lambda vectors: vectors[:, None], bank_width=32, parts=1)
    with pytest.raises(ConfigError, match=r"has 1 tokens, .* places for 3"):
        CaptioningVLM("mine", eye, language, words, "hash")


def test_the_cache_is_named_after_weights_and_preparation(tiny: CaptioningVLM) -> None:
    pictures = PixelImages(torch.zeros(1, 3, 4, 4))
    before = content_hash(tiny, pictures, "tokens")
    other = load_captioner()
    other.model_hash = "another"
    assert content_hash(other, pictures, "tokens") != before
    assert content_hash(load_captioner(), pictures, "tokens") == before
