"""Promptable CLIPs, their prompts as tokens, and the tokens of pictures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.clip.promptable_clip import PromptableCLIP, image_tokens
from privaudit.models.clip.text_tower import Tokenizer, prompt_tokens
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


def test_a_context_of_words_is_the_text_they_spell_and_near_in_bfloat16(
    wrap: Wrap,
) -> None:
    model = wrap()
    context = spelled(model, "a photo of a")[None]
    expected = model.template_features(NAMES)
    found = model.prompts(NAMES, context_tokens=4)(context)[0]
    torch.testing.assert_close(found, expected)
    rounded = model.prompts(NAMES, 4, precision="bfloat16")(context)[0]
    assert rounded.dtype == torch.float32
    assert (rounded * expected).sum(dim=-1).min() > 0.999


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
    assert (prompts.context_tokens, prompts.width, prompts.dim) == (6, 32, 24)
    features = prompts(torch.zeros(2, 6, 32))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(2, 3))


def test_underscores_in_class_names_are_blanks(wrap: Wrap) -> None:
    model = wrap()
    features = model.template_features(["palm_tree", "palm tree"])
    torch.testing.assert_close(features[0], features[1])


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


START, END = 49406, 49407


def ids_without_start(texts: list[str], context_length: int) -> Tensor:
    """Number letters from 3; end token 2, padding 0, no start token: as T5 does it."""
    rows = torch.zeros(len(texts), context_length, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        numbers = [3 + ord(c) - ord("a") for c in text if c.isalpha()]
        numbers = [*numbers[: context_length - 1], 2]
        row[: len(numbers)] = torch.tensor(numbers)
    return rows


def test_a_prompt_is_start_context_name_end_padding(tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer, ["cat."], 3, 10)
    assert tokens.context_start == 1
    # 2368 "cat", 269 ".": CLIP's published vocabulary.
    assert tokens.ids.tolist() == [[START, 2368, 2368, 2368, 2368, 269, END, 0, 0, 0]]


def test_a_tokenizer_without_start_token_has_its_context_first() -> None:
    tokens = prompt_tokens(ids_without_start, ["cab"], 2, 7)
    assert tokens.context_start == 0
    assert tokens.ids.tolist() == [[5, 5, 5, 3, 4, 2, 0]]


def test_the_longest_text_that_fits_does_fit(tokenizer: Tokenizer) -> None:
    tokens = prompt_tokens(tokenizer, ["cat cat."], 5, 10)
    assert tokens.ids[0, -1] == END


def test_a_name_too_long_for_the_context_says_so_with_numbers(
    tokenizer: Tokenizer,
) -> None:
    with pytest.raises(
        ConfigError, match=r"'cat cat\.' takes 5 tokens.* leave 4 of .*10"
    ):
        prompt_tokens(tokenizer, ["cat.", "cat cat."], 6, 10)


@pytest.mark.parametrize("texts", [[], [""], ["cat.", " ."]])
def test_empty_names_are_refused(tokenizer: Tokenizer, texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        prompt_tokens(tokenizer, texts, 2, 10)


Build = Callable[..., nn.Module]


@pytest.fixture
def resnet(small_options: dict[str, Any], build: Build) -> Any:
    vision = {"layers": [1, 1, 1, 1], "width": 4, "head_width": 32, "image_size": 96}
    small_options["vision_cfg"] = vision
    return build()


@pytest.fixture
def vit(build: Build) -> Any:
    return build()


def pictures(size: int) -> Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_patches_that_are_pooled_alike_give_the_pooled_feature(vit: Any) -> None:
    vit.visual.pool_type = "avg"
    tokens = image_tokens(vit, pictures(32))
    torch.testing.assert_close(tokens.mean(1), vit.encode_image(pictures(32)))


def test_a_vit_projects_the_class_token_as_each_patch(vit: Any) -> None:
    kept: list[Tensor] = []
    vit.visual.transformer.register_forward_hook(lambda *args: kept.append(args[-1]))
    tokens, pooled = image_tokens(vit, pictures(32)), vit.encode_image(pictures(32))
    projected = vit.visual.ln_post(kept[0]) @ vit.visual.proj
    torch.testing.assert_close(projected[:, 0], pooled)
    torch.testing.assert_close(projected[:, 1:], tokens)
    assert tokens.shape == (3, 4, 24)


def test_attention_over_a_resnets_tokens_gives_its_pooled_feature(resnet: Any) -> None:
    """With one head the output projection and the average change places."""
    pool = resnet.visual.attnpool
    pool.num_heads = 1
    maps: list[Tensor] = []
    resnet.visual.layer4.register_forward_hook(lambda *args: maps.append(args[-1]))
    tokens = image_tokens(resnet, pictures(96))
    assert tokens.shape == (3, 9, 24)  # one for each position of its map
    places = maps[0].flatten(2).transpose(1, 2)
    states = torch.cat([places.mean(1, keepdim=True), places], 1)
    states = states + pool.positional_embedding
    query, keys = pool.q_proj(states[:, :1]), pool.k_proj(states)
    weights = (query @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5).softmax(-1)
    mean = pool.c_proj(pool.v_proj(states[:, :1]))
    pooled = (weights @ torch.cat([mean, tokens], 1))[:, 0]
    torch.testing.assert_close(pooled, resnet.encode_image(pictures(96)))


@pytest.mark.parametrize("tower", ["vit", "resnet"])
def test_encoded_tokens_are_unit_vectors_whatever_the_batch(
    tower: str, request: pytest.FixtureRequest, tokenizer: Any
) -> None:
    clip = request.getfixturevalue(tower)
    prepare = PicturePreparation(32, (0.5,) * 3, (0.5,) * 3)
    model = PromptableCLIP("small", clip, tokenizer, prepare)
    given = pictures(model.image_size)
    found = model.encode_tokens(given, batch=2)
    expected = normalize(image_tokens(clip, given), dim=-1)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_other_towers_are_refused_by_name(vit: Any) -> None:
    vit.visual.attn_pool = nn.Identity()
    with pytest.raises(ConfigError, match="VisionTransformer with an attentional"):
        image_tokens(vit, pictures(32))
    vit.visual = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="image tower is a Linear"):
        image_tokens(vit, pictures(32))
