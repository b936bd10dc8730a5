from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.models.interfaces import TunableLayer
from privaudit.models.language.language_targets import linear_targets
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.privaudit.models.language.small_language import build_language

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def endings(targets: dict[str, TunableLayer]) -> list[str]:
    return [name.rpartition(".")[2] for name in targets]


def test_all_linear_layers_but_the_head_in_the_models_order() -> None:
    found = linear_targets(build_language("llama"), "all-linear")
    assert endings(found) == LLAMA * 2
    assert [target.layer for target in found.values()] == [0] * 7 + [1] * 7
    assert found["model.layers.1.mlp.down_proj"] == TunableLayer(48, 32, 1)
    assert found["model.layers.0.self_attn.k_proj"] == TunableLayer(32, 16, 0)


def test_fused_projections_of_openelm_are_found() -> None:
    found = linear_targets(build_language("openelm"), "all-linear")
    assert endings(found) == ["qkv_proj", "out_proj", "proj_1", "proj_2"] * 2
    assert found["layers.1.attn.qkv_proj"] == TunableLayer(32, 48, 1)
    assert found["layers.1.ffn.proj_1"] == TunableLayer(32, 96, 1)


def test_transposed_layers_of_gpt2_have_their_own_inputs() -> None:
    found = linear_targets(build_language("gpt2"), "all-linear")
    assert found["transformer.h.0.attn.c_attn"] == TunableLayer(32, 96, 0)


def test_endings_choose_some() -> None:
    found = linear_targets(build_language("qwen"), ["v_proj", "layers.0.mlp.up_proj"])
    assert endings(found) == ["v_proj", "up_proj", "v_proj"]


def test_layers_of_other_parts_do_not_count() -> None:
    model = build_language("llama")
    found = linear_targets(model, "all-linear", part="model.layers.1")
    assert endings(found) == LLAMA
    assert all(name.startswith("model.layers.1.") for name in found)


@pytest.mark.parametrize("names", [["query"], ["q_proj", "query"], ["lm_head"], []])
def test_a_name_that_fits_no_layer_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"There are: q_proj, k_proj, .*down_proj\."):
        linear_targets(build_language("llama"), names)


def test_a_layer_that_is_not_linear_is_refused() -> None:
    with pytest.raises(ConfigError, match="embed_tokens is a Embedding"):
        linear_targets(build_language("llama"), ["embed_tokens"])
    with pytest.raises(ConfigError, match=r"No linear layer .* 'norm'"):
        linear_targets(build_language("llama"), ["norm"])


def test_looking_leaves_the_model_as_it_was() -> None:
    model = build_language("llama")
    before = {name: type(module) for name, module in model.named_modules()}
    linear_targets(model, "all-linear")
    assert before == {name: type(module) for name, module in model.named_modules()}
    assert all(not p.is_meta and p.requires_grad for p in model.parameters())


def test_a_language_model_of_some_targets_has_no_others(tokenizer: Any) -> None:
    language = StackedLanguageModel(build_language("llama"), tokenizer, ["q_proj"])
    assert len(language.targets) == 2


@pytest.mark.parametrize(
    ("kind", "of_attention"), [("llama", LLAMA[:4]), ("gpt2", ["c_attn", "c_proj"])]
)
def test_the_layers_of_attention_can_be_named_together(
    kind: str, of_attention: list[str]
) -> None:
    found = linear_targets(build_language(kind), "attention")
    assert endings(found) == of_attention * 2
    assert all("attn" in name for name in found)
