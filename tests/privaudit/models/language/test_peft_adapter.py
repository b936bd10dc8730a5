from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.models.hugging_face import import_peft
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.transformers.peft_adapter import save_adapter


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("targets", ["all-linear", ["layers.0.self_attn.q_proj"]])
def test_peft_loads_what_one_client_learned(
    kind: str,
    targets: Any,
    build_language: Any,
    tokenizer: Any,
    draw_factors: Any,
    draw_rows: Any,
    as_changes: Any,
    tmp_path: Path,
) -> None:
    if kind == "gpt2" and targets != "all-linear":
        targets = ["h.0.attn.c_attn"]
    language = StackedLanguageModel(build_language(kind), tokenizer, targets)
    factors, (pictures, words) = draw_factors(language, 2), draw_rows(2, 3)
    expected = language.logits(pictures, words, as_changes(factors, scaling=0.7))
    second = {name: (a[1].detach(), b[1].detach()) for name, (a, b) in factors.items()}
    save_adapter(tmp_path / "client", language, second, 0.7, base="some/model")
    names = sorted(path.name for path in (tmp_path / "client").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
    assert (tmp_path / "client").stat().st_mode & 0o777 == 0o700

    model = build_language(kind)
    loaded = import_peft().PeftModel.from_pretrained(model, tmp_path / "client")
    embedded = model.get_input_embeddings()(words.ids[1]).clone()
    embedded[words.kinds[1] == 1] = pictures[1].flatten(0, 1)
    with torch.no_grad():
        found = loaded.eval()(inputs_embeds=embedded).logits
    assert torch.allclose(found, expected[1], atol=1e-5)
    assert not torch.allclose(found, expected[0], atol=0.1)


def test_factors_that_do_not_fit_are_refused(
    language: StackedLanguageModel, tmp_path: Path
) -> None:
    name = "model.layers.0.mlp.up_proj"
    good = torch.zeros(4, 32), torch.zeros(48, 4)
    with pytest.raises(ConfigError, match="'lm_head' is no target"):
        save_adapter(tmp_path, language, {"lm_head": good}, 1.0)
    with pytest.raises(ConfigError, match=r"takes \(\(4, 32\), \(48, 4\)\)"):
        save_adapter(tmp_path, language, {name: (good[0], good[1][:-1])}, 1.0)
    other = {"model.layers.1.mlp.up_proj": (torch.zeros(2, 32), torch.zeros(48, 2))}
    with pytest.raises(ConfigError, match=r"these factors have \[2, 4\]"):
        save_adapter(tmp_path, language, {name: good, **other}, 1.0)
