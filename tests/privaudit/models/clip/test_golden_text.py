from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from privaudit.models.clip.plain_text import plain_text_features
from privaudit.models.clip.prompt_tokens import PromptTokens
from privaudit.models.clip.shared_prefix import SharedPrefixText
from privaudit.models.clip.text_tower import text_tower
from privaudit.models.clip.torchvision_shim import import_open_clip
from tests.privaudit.models.clip.test_shared_prefix import gradient, relative

Golden = Mapping[str, np.ndarray]
Activation = Literal["gelu", "quickgelu"]


def golden_tower(golden: Golden, activation: Activation) -> nn.Module:
    clip = import_open_clip().CLIP(
        embed_dim=int(golden["embed_dim"]),
        vision_cfg={"layers": 1, "width": 8, "head_width": 8, "image_size": 16},
        text_cfg={"vocab_size": int(golden["vocab"])}
        | {n: int(golden[n]) for n in ("context_length", "width", "heads", "layers")},
        quick_gelu=activation == "quickgelu",
    )
    state = {
        name.removeprefix("state/"): torch.from_numpy(golden[name])
        for name in golden
        if name.startswith("state/")
    }
    missing, extra = clip.load_state_dict(state, strict=False)
    assert not extra
    assert all(name.startswith("visual.") for name in missing)
    return clip.double().eval().requires_grad_(False)


def golden_tokens(golden: Golden) -> PromptTokens:
    return PromptTokens(torch.from_numpy(golden["token_ids"]), 1, int(golden["n_ctx"]))


@pytest.mark.parametrize("activation", ["gelu", "quickgelu"])
def test_features_and_gradients_equal_the_golden_ones(
    golden: Golden, activation: Activation
) -> None:
    shared = SharedPrefixText(
        text_tower(golden_tower(golden, activation)), golden_tokens(golden)
    )
    contexts = torch.from_numpy(golden["ctx"])[None].requires_grad_()
    for suffix, weights, normed in [("", "W", False), ("_norm", "W_norm", True)]:
        features = shared(contexts)
        features = normalize(features, dim=-1) if normed else features
        found = gradient(features, contexts, torch.from_numpy(golden[weights]))
        expected = golden[f"{activation}_features{suffix}"]
        np.testing.assert_allclose(features[0].detach(), expected, atol=1e-9)
        np.testing.assert_allclose(
            found[0], golden[f"{activation}_grad_ctx{suffix}"], rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("activation", ["gelu", "quickgelu"])
def test_float32_is_within_the_golden_tolerance(
    golden: Golden, activation: Activation
) -> None:
    clip = golden_tower(golden, activation).float()
    shared = SharedPrefixText(text_tower(clip), golden_tokens(golden))
    contexts = torch.from_numpy(golden["ctx"])[None].float().requires_grad_()
    features = normalize(shared(contexts), dim=-1)
    found = gradient(features, contexts, torch.from_numpy(golden["W_norm"]).float())
    expected = golden[f"{activation}_features_norm"]
    np.testing.assert_allclose(features[0].detach(), expected, atol=1e-5)
    expected_gradient = torch.from_numpy(golden[f"{activation}_grad_ctx_norm"])
    assert relative(found[0].double(), expected_gradient) < 1e-4


@pytest.mark.parametrize("activation", ["gelu", "quickgelu"])
def test_the_plain_path_equals_the_golden_one_with_a_context_for_each_class(
    golden: Golden, activation: Activation
) -> None:
    clip, tokens = golden_tower(golden, activation), golden_tokens(golden)
    contexts = torch.from_numpy(golden["ctx_per_class"]).requires_grad_()
    features = plain_text_features(clip, tokens, contexts)
    found = gradient(features, contexts, torch.from_numpy(golden["W"]))
    np.testing.assert_allclose(
        features.detach(), golden[f"{activation}_features_per_class"], atol=1e-9
    )
    np.testing.assert_allclose(
        found, golden[f"{activation}_grad_ctx_per_class"], rtol=1e-9, atol=1e-9
    )


def test_without_a_context_it_is_the_towers_own_encode_text(golden: Golden) -> None:
    clip: Any = golden_tower(golden, "gelu")
    whole = PromptTokens(torch.from_numpy(golden["token_ids"]), 1, 0)
    features = SharedPrefixText(text_tower(clip), whole)(torch.empty(1, 0, 64).double())
    np.testing.assert_allclose(features[0], golden["gelu_encode_text"], atol=1e-9)
