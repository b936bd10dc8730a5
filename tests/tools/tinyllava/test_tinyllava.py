"""TinyLLaVA, FedRand's backbone, as a miniature in the layout of its repository.

The code that such a repository carries is written anew in the two files beside this one.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import PADDING, PICTURE, Dialogue
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.remote_code import trust_remote_code
from privaudit_tools.tables.overrides import overridden
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import read_plan
from privaudit_tools.tables.table import make_table
from tests.conftest import Cli
from tests.loaded_models import load_captioner
from tests.places import ROOT
from tests.small_transformers import (
    draw,
    pair_shapes,
    random_model,
    some_lora,
    with_lora_of_peft,
)
from tests.small_vlms import _tokenizer

HERE = Path(__file__).parent
PLAN = ROOT / "docs" / "tables" / "clip" / "fedrand-table-4-tinyllava.toml"
NAME = "TinyLLaVA-OpenELM-450M-CLIP-0.55B"
MODELING = "modeling_tinyllava_elm"
SIGHT = {"image_size": 16, "patch_size": 8, "hidden_size": 12, "intermediate_size": 20}
LAYERS = {"num_hidden_layers": 3, "num_attention_heads": 2}
WORDS = {
    "model_dim": 16,
    "head_dim": 4,
    "num_transformer_layers": 2,
    "num_query_heads": [2, 4],
    "num_kv_heads": [1, 2],
    "ffn_multipliers": [0.5, 2.0],
    "max_context_length": 256,
}
SMALL: dict[str, Any] = {
    "dataset": "scenes",
    "data": None,
    "clients": 2,
    "rounds": 1,
    "measured_rounds": 1,
    "shots": 1,
    "tested": 2,
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = import_transformers().dynamic_module_utils
    monkeypatch.setattr(found, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write weights, tokenizer and code as the hub has them."""
    transformers = import_transformers()
    folder, tokenizer = tmp_path / "models" / NAME, _tokenizer("llava")
    tokenizer.save_pretrained(folder)
    config = {
        "model_type": "tinyllava",
        "auto_map": {
            "AutoConfig": "configuration.TinyLlavaConfig",
            "AutoModelForCausalLM": f"{MODELING}.TinyLlavaForConditionalGeneration",
        },
        "text_config": {**WORDS, "vocab_size": len(tokenizer)},
        "vision_config": {**SIGHT, **LAYERS},
        "connector_type": "mlp2x_gelu",
        "image_token_index": -200,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "patch",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(HERE / "configuration.py", folder)
    shutil.copy(HERE / "modeling.py", folder / f"{MODELING}.py")
    trusted = {"trust_remote_code": True}
    read = transformers.AutoConfig.from_pretrained(folder, **trusted)
    made = transformers.AutoModelForCausalLM
    model = random_model(lambda: made.from_config(read, **trusted))
    save_model(model, str(folder / "model.safetensors"), {"format": "pt"})
    return folder


def test_its_code_runs_where_it_is_trusted_alone(
    folder: Path, tmp_path: Path, cli: Cli
) -> None:
    for name in (f"llava:{folder}", f"vlm:{folder}"):
        with pytest.raises(ConfigError, match="runs no such code unless you give"):
            load_captioner(name)
    with (
        trust_remote_code(),
        pytest.raises(ConfigError, match="llava: takes TinyLLaVA"),
    ):
        load_captioner(f"vlm:{folder}")
    train = ("train", "--trainer", "fedrand", "--dataset", "scenes", "--rounds", 1)
    model = ("--model", f"llava:{folder}", "--runs", tmp_path / "runs")
    assert "--trust-remote-code" in cli.refused(*train, *model)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_logits_are_its_own_and_peft_s(folder: Path) -> None:
    """Its own, where a picture's features stand at their places among words."""
    with trust_remote_code():
        model = load_captioner(f"llava:{folder}")
        own = import_transformers().AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True
        )
    assert (model.parts, model.width, model.language.context) == (4, 16, 256)
    assert len(model.language.targets) == 8
    drawn = torch.randint(
        256, (2, 3, 20, 30), generator=torch.Generator().manual_seed(0)
    )
    pixels = drawn.to(torch.uint8)
    prepared = model.preprocess_batch(pixels)
    expected = own.vision_tower._image_processor(list(pixels), return_tensors="pt")
    assert torch.equal(prepared, expected["pixel_values"])
    dialogues = [Dialogue("who is?", ("a square",)), Dialogue("what?", ("yes",))]
    words = model.words(dialogues)
    tokens = model.encode_tokens(prepared)
    found = model.language.logits(tokens[None], words.repeated(1), Tuning())[0]
    pairs = draw(pair_shapes(model.language, 1))
    tuning = some_lora(model.language, pairs)
    tuned = model.language.logits(tokens[None], words.repeated(1), tuning)[0]
    assert not torch.allclose(tuned, found)
    with torch.no_grad():
        embedded = own.get_input_embeddings()(words.ids)
        places = words.kinds == PICTURE
        assert places.sum(dim=1).tolist() == [4, 4]
        embedded[places] = own.encode_images(prepared).flatten(0, 1)
        plain = own(inputs_embeds=embedded).logits
        peft = with_lora_of_peft(own.language_model, model.language, pairs)
        with_pairs = peft(inputs_embeds=embedded).logits
    real = words.kinds != PADDING
    assert torch.allclose(found[real], plain[real], atol=1e-5)
    assert torch.allclose(tuned[real], with_pairs[real], atol=1e-5)


@pytest.mark.usefixtures("few_scenes")
def test_fedrand_s_plan_trains_and_attacks_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_MODELS", str(folder.parent))
    plan = overridden(read_plan(PLAN), {}, SMALL, [1])
    piece = Piece(r"^FedRand \(client\)$", "")
    with trust_remote_code():
        table = make_table(plan, folder=tmp_path / "runs", piece=piece).shown
    assert not table.failures
    row, column = next(
        cell for cell in plan.cells if cell[0].label == "FedRand (client)"
    )
    for metric in plan.measured:
        cell = table.cell(row, column, metric, "last")
        assert cell
        assert cell.mean
        assert 0 <= cell.mean.value <= 100


def test_fedrand_s_plan_says_what_it_lacks(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ("table", PLAN, "--check", "--trust-remote-code")
    monkeypatch.delenv("PRIVAUDIT_MODELS", raising=False)
    assert f"PRIVAUDIT_MODELS ({NAME})" in cli.refused(*check)
    monkeypatch.setenv("PRIVAUDIT_MODELS", str(tmp_path))
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    assert f"not there: {tmp_path / NAME}" in cli.refused(*check)
