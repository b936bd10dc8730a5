"""The fast text path and its derivative, against open_clip's own path and golden values."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import normalize

from privaudit.core.devices import use_checkpointing
from privaudit.models.clip import shared_prefix
from privaudit.models.clip.shared_prefix import Packing, SharedPrefixText
from privaudit.models.clip.text_tower import (
    PromptTokens,
    plain_prompt_features,
    text_tower,
)
from privaudit.models.hugging_face import import_open_clip
from privaudit_tools.benchmarks.launches import (
    BYTES,
    KERNELS,
    as_on_devices,
    bound_text,
    counted,
    empty_text_tower,
)
from tests.privaudit.models.conftest import TEXT

Build = Callable[..., nn.Module]
END = 49407

TOWERS: list[dict[str, Any]] = [
    {},
    {"quick_gelu": True},
    {"ls_init_value": 0.3},
    {"pool_type": "eos", "eos_id": END},
    {"kind": "CustomTextCLIP"},
    {"kind": "CustomTextCLIP", "proj_type": "none", "width": 24, "heads": 3},
    {"kind": "CustomTextCLIP", "proj_bias": True},
    {"norm_kwargs": {"eps": 0.1}},
]


def tokens_of(
    lengths: list[int], context_tokens: int, length: int = 40
) -> PromptTokens:
    generator = torch.Generator().manual_seed(sum(lengths))
    ids = torch.zeros(len(lengths), length, dtype=torch.long)
    for row, count in zip(ids, lengths, strict=True):
        end = 1 + context_tokens + count
        row[:end] = torch.randint(1, 400, (end,), generator=generator)
        row[0] = END - 1
        row[end] = END
    return PromptTokens(ids, 1, context_tokens)


def contexts_for(
    prompts: int,
    tokens: PromptTokens,
    width: int = 32,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (prompts, tokens.context_tokens, width)
    return torch.randn(shape, generator=generator, dtype=dtype)


def gradient(features: Tensor, contexts: Tensor, weights: Tensor) -> Tensor:
    return torch.autograd.grad((features * weights).sum(), contexts)[0]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("options", TOWERS, ids=str)
def test_every_causal_tower_equals_the_plain_path(
    build: Build, options: dict[str, Any]
) -> None:
    clip = build(**options).double()
    tower, tokens = text_tower(clip), tokens_of([2, 5, 1, 2, 3], context_tokens=4)
    assert tower.shares_prefixes()
    contexts = contexts_for(3, tokens, tower.width).requires_grad_()
    shared = SharedPrefixText(tower, tokens)(contexts)
    plain = plain_prompt_features(clip, tokens, contexts)
    weights = torch.linspace(-1, 1, plain.numel(), dtype=torch.float64).view_as(plain)
    torch.testing.assert_close(shared, plain, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        gradient(shared, contexts, weights),
        gradient(plain, contexts, weights),
        rtol=1e-8,
        atol=1e-8,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"no_causal_mask": True},
        {"pool_type": "last"},
        {"pool_type": "first", "no_causal_mask": True},
        {"qk_norm": True},
        {"scale_fc": True},
        {"kind": "CoCa", "embed_cls": True, "output_tokens": True},
    ],
    ids=str,
)
def test_towers_that_cannot_share_a_prefix_are_recognised(
    build: Build, options: dict[str, Any]
) -> None:
    clip = build(**options)
    tokens = tokens_of([1, 2], context_tokens=2)
    assert not text_tower(clip).shares_prefixes()
    contexts = contexts_for(2, tokens, dtype=torch.float32)
    features = plain_prompt_features(clip, tokens, contexts)
    assert features.shape == (2, 2, 24)
    changed = plain_prompt_features(clip, tokens, -contexts)
    assert (features - changed).abs().amax(dim=-1).min() > 1e-4


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    context_tokens=st.integers(0, 8),
    prompts=st.integers(1, 3),
    rectangle=st.integers(1, 20),
)
def test_any_mix_of_lengths_equals_the_plain_path(
    lengths: list[int], context_tokens: int, prompts: int, rectangle: int
) -> None:
    clip = _small_clip()
    tokens = tokens_of(lengths, context_tokens)
    contexts = contexts_for(prompts, tokens).requires_grad_()
    with patch.object(shared_prefix, "RECTANGLE", rectangle):
        shared = SharedPrefixText(text_tower(clip), tokens)(contexts)
    plain = plain_prompt_features(clip, tokens, contexts)
    torch.testing.assert_close(shared, plain, rtol=1e-9, atol=1e-9)
    grads = [gradient(one, contexts, plain.detach()) for one in (shared, plain)]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


@cache
def _small_clip() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = import_open_clip().CLIP(
            embed_dim=24,
            vision_cfg={"layers": 1, "width": 8, "head_width": 8, "image_size": 16},
            text_cfg={**TEXT, "layers": 2},
        )
    return clip.double().eval().requires_grad_(False)


def test_what_stands_behind_the_end_token_changes_nothing(build: Build) -> None:
    tower = text_tower(build().double())
    tokens = tokens_of([3, 1], context_tokens=2)
    other = PromptTokens(tokens.ids.clone(), 1, 2)
    other.ids[:, 10:] = 7
    contexts = contexts_for(1, tokens)
    assert torch.equal(
        SharedPrefixText(tower, tokens)(contexts),
        SharedPrefixText(tower, other)(contexts),
    )


@pytest.mark.parametrize("matmul_type", [None, torch.bfloat16])
def test_batched_gradients_equal_one_gradient_at_a_time(
    build: Build, matmul_type: torch.dtype | None
) -> None:
    tower = text_tower(build())
    tokens = tokens_of([1, 2, 2], context_tokens=3)
    shared = SharedPrefixText(tower, tokens, matmul_type)
    contexts = contexts_for(2, tokens, dtype=torch.float32).requires_grad_()
    features = shared(contexts)
    directions = torch.randn(
        5, *features.shape, generator=torch.Generator().manual_seed(2)
    )
    batched = torch.autograd.grad(
        features, contexts, directions, is_grads_batched=True, retain_graph=True
    )[0]
    single = [
        torch.autograd.grad(features, contexts, direction, retain_graph=True)[0]
        for direction in directions
    ]
    tolerance = 1e-5 if matmul_type is None else 0.03
    assert relative(batched, torch.stack(single)) < tolerance


def test_it_runs_under_vmap_and_functional_gradients(build: Build) -> None:
    tokens = tokens_of([1, 2], context_tokens=3)
    shared = SharedPrefixText(text_tower(build().double()), tokens)
    contexts = contexts_for(4, tokens)[:, None]
    torch.testing.assert_close(
        torch.func.vmap(shared)(contexts), torch.stack([shared(c) for c in contexts])
    )

    def total(context: Tensor) -> Tensor:
        return shared(context).square().sum()

    mapped = torch.func.vmap(torch.func.grad(total))(contexts)
    single = torch.stack([torch.func.grad(total)(context) for context in contexts])
    torch.testing.assert_close(mapped, single)


def test_no_weight_gets_a_gradient(build: Build) -> None:
    clip = build()
    tokens = tokens_of([1, 2], context_tokens=3)
    contexts = contexts_for(1, tokens, dtype=torch.float32).requires_grad_()
    total = SharedPrefixText(text_tower(clip), tokens)(contexts).sum()
    torch.autograd.backward(total)
    assert contexts.grad is not None
    assert all(parameter.grad is None for parameter in clip.parameters())


def test_bfloat16_leaves_the_models_own_weights_alone(build: Build) -> None:
    clip = build()
    tokens = tokens_of([2, 3], context_tokens=4)
    tower = text_tower(clip)
    contexts = contexts_for(1, tokens, dtype=torch.float32)
    rounded = SharedPrefixText(tower, tokens, torch.bfloat16)(contexts)
    exact = SharedPrefixText(tower, tokens)(contexts)
    assert rounded.dtype == exact.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert relative(rounded, exact) < 0.05
    assert {p.dtype for p in clip.parameters()} == {torch.float32}


def test_rows_see_the_prefix_and_their_own_class_s_past() -> None:
    packing = Packing(prefix=2, lengths=[1, 2])
    assert packing.seen().int().tolist() == [
        [1, 0, 0, 0, 0],  # start
        [1, 1, 0, 0, 0],  # context
        [1, 1, 1, 0, 0],  # the short class
        [1, 1, 0, 1, 0],  # the long class
        [1, 1, 0, 1, 1],
    ]
    assert packing.ends.tolist() == [2, 4]


def test_rows_in_rectangles_see_as_much_and_padding_sees_the_prefix() -> None:
    packing = Packing(prefix=2, lengths=[3, 1, 2, 4], rectangles=3)
    assert packing.whose.tolist() == [-1, -1, 0, 0, 0, 1, 2, 2, -2, -2, 3, 3, 3, 3, -2]
    seen = packing.seen_beside().sum(dim=-1).flatten().tolist()
    assert seen == [1, 2, 3, 4, 5, 3, 3, 4, 3, 4, 3, 4, 5, 6, 3]


def test_second_derivatives_are_there_where_attention_is_spelled_out(
    build: Build,
) -> None:
    clip, tokens = build().double(), tokens_of([1, 2], context_tokens=3)
    found: list[Tensor] = []
    with sdpa_kernel(SDPBackend.MATH):
        for encode in (
            SharedPrefixText(text_tower(clip), tokens),
            partial(plain_prompt_features, clip, tokens),
        ):
            contexts = contexts_for(1, tokens).requires_grad_()
            total = encode(contexts).square().sum()
            (first,) = torch.autograd.grad(total, contexts, create_graph=True)
            found += torch.autograd.grad(first.square().sum(), contexts)
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)


def test_a_step_has_as_many_kernels_for_any_number_of_classes_and_prompts(
    build: Build,
) -> None:
    tower = text_tower(build())
    text = {n: SharedPrefixText(tower, tokens_of([2] * n, 3)) for n in (1, 9)}
    counts = {counted(text[n], k, n, 3).kernels for n in text for k in (1, 4)}
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("classes", "dtype"), [(10, None), (10, torch.bfloat16), (100, torch.bfloat16)]
)
def test_a_step_of_vit_b_16_keeps_to_its_kernels_and_bytes(
    classes: int, dtype: torch.dtype | None
) -> None:
    with as_on_devices():
        text = bound_text(empty_text_tower(), classes, dtype)
        found = counted(text, 10, classes)
    assert found.kernels <= KERNELS
    assert dtype is None or found.bytes <= BYTES[classes, 10]


@pytest.mark.slow
def test_the_text_tower_of_vit_b_16_equals_open_clips_own() -> None:
    open_clip: Any = import_open_clip()
    options = open_clip.get_model_config("ViT-B-16")
    options["vision_cfg"] |= {"layers": 1}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = open_clip.CLIP(**options).eval().requires_grad_(False)
    tokens = tokens_of([1, 2, 2, 4], context_tokens=16, length=77)
    contexts = 0.02 * contexts_for(1, tokens, 512, torch.float32)
    contexts.requires_grad_()
    shared = normalize(SharedPrefixText(text_tower(clip), tokens)(contexts), dim=-1)
    plain = normalize(plain_prompt_features(clip, tokens, contexts), dim=-1)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shared, plain, rtol=0, atol=1e-5)
    found = gradient(shared, contexts, weights)
    assert relative(found, gradient(plain, contexts, weights)) < 1e-4


LENGTHS = [2, 5, 1, 2, 3]


@pytest.mark.parametrize("options", [*TOWERS, {"layers": 1}], ids=str)
def test_many_products_are_those_of_autograd_one_by_one(
    build: Build, options: dict[str, Any]
) -> None:
    clip = build(**options).double()
    tower, tokens = text_tower(clip), tokens_of(LENGTHS, context_tokens=4)
    text, contexts = (
        SharedPrefixText(tower, tokens),
        contexts_for(3, tokens, tower.width),
    )
    found = text.jacobian(contexts)
    assert found is not None
    leaf = contexts.clone().requires_grad_()
    features = normalize(text(leaf), dim=-1)
    torch.testing.assert_close(found.features, features, rtol=1e-9, atol=1e-9)
    behind = torch.randn(6, *features.shape, dtype=torch.float64)
    products = found.products(behind)
    assert products.shape == (6, *contexts.shape)
    for vector, product in zip(behind, products, strict=True):
        (want,) = torch.autograd.grad(features, leaf, vector, retain_graph=True)
        torch.testing.assert_close(product, want, rtol=1e-8, atol=1e-9)


def test_a_context_s_products_depend_on_no_other_context(build: Build) -> None:
    tower, tokens = text_tower(build()), tokens_of(LENGTHS, context_tokens=4)
    text = SharedPrefixText(tower, tokens)
    contexts = contexts_for(2, tokens, dtype=torch.float32)
    behind = torch.randn(1, 2, len(LENGTHS), tower.dim)

    def product(both: Tensor) -> Tensor:
        found = text.jacobian(both)
        assert found is not None
        return found.products(behind)[0, 0]

    changed = torch.stack([contexts[0], contexts[1] + 1])
    torch.testing.assert_close(product(contexts), product(changed))


def test_where_autograd_takes_less_there_is_none(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower, tokens = text_tower(build()), tokens_of(LENGTHS, context_tokens=4)
    contexts = contexts_for(2, tokens, dtype=torch.float32)
    assert SharedPrefixText(tower, tokens, torch.bfloat16).jacobian(contexts) is None
    text = SharedPrefixText(tower, tokens)
    with use_checkpointing():
        assert text.jacobian(contexts) is None
    monkeypatch.setattr(shared_prefix, "MOST_ROWS", 10)
    assert text.jacobian(contexts) is None


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
    every = plain_prompt_features(clip, tokens, contexts)
    features = every.diagonal(dim1=0, dim2=1).T  # each class behind its own
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
