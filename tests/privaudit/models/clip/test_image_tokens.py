"""Patch features of both of open_clip's towers, against their own pooled feature."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.language.image_tokens import image_tokens

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


def test_a_vit_has_a_token_for_each_patch(vit: Any) -> None:
    assert image_tokens(vit, pictures(32)).shape == (3, 4, 24)


def test_patches_that_are_pooled_alike_give_the_pooled_feature(vit: Any) -> None:
    vit.visual.pool_type = "avg"
    tokens = image_tokens(vit, pictures(32))
    torch.testing.assert_close(tokens.mean(1), vit.encode_image(pictures(32)))


def test_a_vit_projects_the_class_token_as_its_patches(vit: Any) -> None:
    kept: list[Tensor] = []
    vit.visual.transformer.register_forward_hook(lambda *args: kept.append(args[-1]))
    tokens, pooled = image_tokens(vit, pictures(32)), vit.encode_image(pictures(32))
    projected = vit.visual.ln_post(kept[0]) @ vit.visual.proj
    torch.testing.assert_close(projected[:, 0], pooled)
    torch.testing.assert_close(projected[:, 1:], tokens)


def test_a_resnet_has_a_token_for_each_position_of_its_map(resnet: Any) -> None:
    assert image_tokens(resnet, pictures(96)).shape == (3, 9, 24)


def test_attention_over_a_resnets_tokens_gives_its_pooled_feature(resnet: Any) -> None:
    """With one head the output projection and the average change places."""
    pool = resnet.visual.attnpool
    pool.num_heads = 1
    maps: list[Tensor] = []
    resnet.visual.layer4.register_forward_hook(lambda *args: maps.append(args[-1]))
    tokens = image_tokens(resnet, pictures(96))
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
