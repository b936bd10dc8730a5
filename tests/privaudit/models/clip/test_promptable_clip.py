from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.clip.promptable_clip import PromptableCLIP
from tests.loaded_models import spelled

Wrap = Callable[..., PromptableCLIP]
NAMES = ["cat", "palm tree", "dog"]


@pytest.fixture
def wrap(build: Callable[..., nn.Module], tokenizer: Any) -> Wrap:
    def make(**options: Any) -> PromptableCLIP:
        prepare = PicturePreparation(32, (0.5,) * 3, (0.5,) * 3)
        return PromptableCLIP("small", build(**options), tokenizer, prepare)

    return make


def test_it_tells_its_sizes(wrap: Wrap) -> None:
    model = wrap()
    assert (model.width, model.dim, model.image_size) == (32, 24, 32)
    assert model.logit_scale == pytest.approx(float(model.clip.logit_scale.exp()))
    assert not any(p.requires_grad for p in model.clip.parameters())


def test_image_features_are_unit_vectors_whatever_the_batch(wrap: Wrap) -> None:
    model = wrap()
    pictures = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    prepared = model.preprocess_batch(pictures)
    features = model.encode_images(prepared, batch=2)
    expected = normalize(model.clip.encode_image(prepared), dim=-1)
    torch.testing.assert_close(features, expected)
    assert not features.requires_grad
    assert model.encode_images(prepared[:0]).shape == (0, 24)


def test_a_context_of_words_equals_the_text_they_spell(wrap: Wrap) -> None:
    model = wrap()
    prompts = model.prompts(NAMES, context_tokens=4)
    found = prompts(spelled(model, "a photo of a")[None])[0]
    torch.testing.assert_close(found, model.template_features(NAMES))


def test_template_features_equal_open_clips_encode_text(wrap: Wrap) -> None:
    model = wrap()
    ids = model.tokenizer([f"the {name}, drawn" for name in NAMES], context_length=40)
    expected = model.clip.encode_text(ids, normalize=True)
    found = model.template_features(NAMES, "the {}, drawn")
    torch.testing.assert_close(found, expected)


def test_a_tower_that_is_not_causal_takes_the_plain_path(wrap: Wrap) -> None:
    model = wrap(kind="CustomTextCLIP", no_causal_mask=True)
    ids = model.tokenizer(
        [f"a photo of a {name}." for name in NAMES], context_length=40
    )
    expected = model.clip.encode_text(ids, normalize=True)
    torch.testing.assert_close(model.template_features(NAMES), expected)
    found = model.prompts(NAMES, context_tokens=4)(spelled(model, "a photo of a")[None])
    torch.testing.assert_close(found[0], expected)
    context = spelled(model, "a photo of a")[None]
    rounded = model.prompts(NAMES, 4, precision="bfloat16")(context)
    assert 0.999 < (rounded[0] * expected).sum(dim=-1).min() < 1
    with pytest.raises(ConfigError, match="Use float32 or bfloat16"):
        model.prompts(NAMES, precision="float16")


def test_class_prompts_tell_their_sizes_and_return_unit_vectors(wrap: Wrap) -> None:
    prompts = wrap().prompts(NAMES, context_tokens=6)
    assert prompts.class_names == tuple(NAMES)
    assert (prompts.context_tokens, prompts.width, prompts.dim) == (6, 32, 24)
    features = prompts(torch.zeros(2, 6, 32))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(2, 3))


def test_underscores_in_class_names_are_blanks(wrap: Wrap) -> None:
    model = wrap()
    features = model.template_features(["palm_tree", "palm tree"])
    torch.testing.assert_close(features[0], features[1])


def test_bfloat16_is_close_to_float32(wrap: Wrap) -> None:
    model = wrap()
    contexts = 0.02 * torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(0))
    exact = model.prompts(NAMES, 4)(contexts)
    rounded = model.prompts(NAMES, 4, precision="bfloat16")(contexts)
    assert rounded.dtype == torch.float32
    assert (exact * rounded).sum(dim=-1).min() > 0.999


def test_contexts_of_another_length_are_refused_with_both_shapes(wrap: Wrap) -> None:
    prompts = wrap().prompts(NAMES, context_tokens=6)
    with pytest.raises(ConfigError, match=r"\(6, 32\).*\(5, 32\)"):
        prompts(torch.zeros(1, 5, 32))


def test_what_cannot_be_a_prompt_is_refused(wrap: Wrap) -> None:
    model = wrap()
    with pytest.raises(ConfigError, match="leave 2 of the text tower's 40"):
        model.prompts(NAMES, context_tokens=38)
    with pytest.raises(ConfigError, match="has none"):
        model.template_features(NAMES, "a photo")
    with pytest.raises(ConfigError, match="0 classes"):
        model.prompts([])


def test_the_hash_follows_the_weights(wrap: Wrap) -> None:
    first, second = wrap(), wrap()
    with torch.no_grad():
        for a, b in zip(first.clip.parameters(), second.clip.parameters(), strict=True):
            b.copy_(a)
    assert first.model_hash == second.model_hash
    changed = wrap()
    assert changed.model_hash != first.model_hash


def test_a_bank_of_another_size_is_refused_with_both(wrap: Wrap) -> None:
    model = wrap()
    assert model.bank_width == model.dim
    with pytest.raises(ConfigError, match=r"takes embeddings of 24 .* have 23"):
        model.encode_bank(torch.zeros(2, 23))
