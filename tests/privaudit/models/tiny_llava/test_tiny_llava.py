"""The weights that come with the package."""

import hashlib
import time

import pytest
import torch

from privaudit.datasets.scenes import scenes, scenes_far, scenes_vqa
from privaudit.datasets.scenes.wording import DESCRIBE
from privaudit.models.tiny_llava.loading import (
    CONTEXT_LENGTH,
    HIDDEN,
    LlavaTokenizer,
    TinyLlava,
    configuration,
    load,
    prepare,
)

VOCABULARY = "c60e8cc57ea93752"  # another order or another word needs other weights


@pytest.fixture(scope="module")
def loaded() -> TinyLlava:
    return load()


def test_it_loads_in_seconds_frozen_and_is_transformers_own_llama(
    loaded: TinyLlava,
) -> None:
    from transformers import LlamaForCausalLM

    started = time.process_time()
    load()
    assert time.process_time() - started < 3
    assert isinstance(loaded.language, LlamaForCausalLM)
    assert not loaded.language.training
    assert not any(p.requires_grad for p in loaded.language.parameters())


def test_a_picture_has_16_tokens_in_any_batch_and_no_gradient(
    loaded: TinyLlava,
) -> None:
    pixels = torch.randint(
        256, (3, 3, 64, 64), generator=torch.Generator().manual_seed(0)
    ).to(torch.uint8)
    tokens = loaded.encode(prepare(pixels))
    assert tokens.shape == (3, 16, HIDDEN)
    assert not tokens.requires_grad
    torch.testing.assert_close(loaded.encode(prepare(pixels[1:2])), tokens[1:2])


def test_pictures_of_other_sizes_and_grey_ones_are_taken(loaded: TinyLlava) -> None:
    assert prepare(torch.zeros(2, 1, 8, 8)).shape == (2, 3, 64, 64)
    grey = torch.full((1, 3, 100, 80), 0.75)
    torch.testing.assert_close(prepare(grey), torch.ones(1, 3, 64, 64))


def test_every_word_of_the_data_sets_is_known_and_comes_back() -> None:
    tokenizer = LlavaTokenizer()
    letters = {n for n, t in enumerate(tokenizer.vocabulary) if t.startswith("##")}
    for dataset in (scenes(), scenes_far(), scenes_vqa()):
        for dialogue in dataset.dialogues[:300]:
            for text in (dialogue.question, *dialogue.answers):
                numbers = tokenizer.encode(text)
                assert not letters & set(numbers)
                assert tokenizer.decode(numbers) == text.lower()
                assert len(numbers) < CONTEXT_LENGTH / 2


def test_spelled_words_come_back_whole_and_silent_tokens_do_not() -> None:
    tokenizer = LlavaTokenizer()
    assert tokenizer.decode(tokenizer("A zebra (in Oslo)?")[0].tolist()) == (
        "a zebra (in oslo)?"
    )
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode(DESCRIBE)[0] not in (0, tokenizer.eot_token_id)


def test_the_vocabulary_is_that_of_the_weights() -> None:
    tokenizer = LlavaTokenizer()
    assert tokenizer.vocab_size == configuration()["vocab_size"] < 600
    digest = hashlib.sha256("\n".join(tokenizer.vocabulary).encode()).hexdigest()
    assert digest[:16] == VOCABULARY
