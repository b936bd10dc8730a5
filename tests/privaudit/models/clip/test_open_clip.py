"""open_clip's SigLIP, its text towers of transformers, and configurations of somebody else.

They are small, in their own layout; a foreign configuration runs nobody's code.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from privaudit import train
from privaudit.core.devices import use_checkpointing
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.operations import PeakMemory
from privaudit.datasets.dataset import DATASETS
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.text_tower import any_text_tower
from privaudit.models.hugging_face import import_open_clip, import_transformers
from privaudit.models.interfaces import Precision
from privaudit.models.remote_code import trust_remote_code
from tests.audited_runs import attack_one_client
from tests.loaded_models import load_clip
from tests.small_records import picture_data
from tests.small_transformers import (
    CONTEXT,
    alter,
    random_model,
    save,
    siglip_tokenizer,
    text_config,
)

NAMES = ("bright film", "dull song")
VISION = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16}
FINE: Precision = "float32"
COARSE: Precision = "bfloat16"
KINDS = ("siglip", "siglip2", "xlm-roberta", "bert")


def architecture(kind: str, folder: Path) -> dict[str, Any]:
    """Return a small configuration, with the values of the published ones that matter."""
    vision: dict[str, Any] = {**VISION, "patch_size": 16}
    if kind.startswith("siglip"):
        version = 2 if kind == "siglip2" else 1
        siglip_tokenizer(version).save_pretrained(folder)
        text = {
            "context_length": CONTEXT,
            "vocab_size": 90,
            "hf_tokenizer_name": str(folder),
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "width": 32,
            "heads": 2,
            "layers": 1,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
        }
        if version == 2:
            text["act_kwargs"] = {"approximate": "tanh"}
        vision |= {"attentional_pool": True, "attn_pooler_heads": 2}
        whole = {"custom_text": True, "init_logit_bias": -10}
        return {"embed_dim": 32, **whole, "vision_cfg": vision, "text_cfg": text}
    save(folder, f"encoder-{kind}")
    text = {"hf_model_name": str(folder), "hf_tokenizer_name": str(folder)}
    text["hf_pooler_type"] = "cls_pooler" if kind == "bert" else "mean_pooler"
    text |= {"context_length": CONTEXT}
    return {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}


def built(described: dict[str, Any]) -> nn.Module:
    """Return open_clip's own model, at random weights."""
    open_clip: Any = import_open_clip()
    options = {**described, "text_cfg": dict(described["text_cfg"])}
    options.pop("custom_text", None)
    if "hf_model_name" in options["text_cfg"]:
        options["text_cfg"]["hf_model_pretrained"] = False
    return random_model(lambda: open_clip.CustomTextCLIP(**options))


@pytest.fixture(scope="module", params=KINDS)
def saved(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Save a configuration and a checkpoint as people have them."""
    folder = tmp_path_factory.mktemp(request.param)
    described = architecture(request.param, folder / "text")
    config = folder / f"small-{request.param}.json"
    config.write_text(json.dumps(described))
    weights = built(described).state_dict()
    if request.param == "xlm-roberta":  # as checkpoints of earlier versions
        weights["text.transformer.embeddings.position_ids"] = torch.arange(40)[None]
    if request.param == "siglip2":
        del weights["logit_bias"]
    save_file(weights, folder / "weights.safetensors")
    return f"open_clip:{config}", folder / "weights.safetensors"


@pytest.fixture(scope="module")
def model(saved: tuple[str, Path]) -> PromptableCLIP:
    return load_clip(*saved)


def test_logits_are_open_clips_own_up_to_a_common_bias(
    saved: tuple[str, Path], model: PromptableCLIP
) -> None:
    path = Path(saved[0].partition(":")[2])
    own: Any = built(json.loads(path.read_text()))
    ids = model.tokenizer([f"a photo of a {name}." for name in NAMES], CONTEXT)
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = own.get_logits(pixels, ids)[0]
    texts = model.template_features(NAMES)
    found = model.logit_scale * model.encode_images(pixels) @ texts.T
    bias = 0 if own.logit_bias is None else own.logit_bias
    torch.testing.assert_close(found + bias, expected, atol=1e-5, rtol=0)


def test_a_context_of_words_equals_the_text_they_spell(model: PromptableCLIP) -> None:
    full, name = model.tokenizer([f"a film is a {NAMES[0]}.", f"{NAMES[0]}."], CONTEXT)
    count = int((full != full[-1]).sum() - (name != name[-1]).sum())
    first = int(full[0] == name[0])  # behind the start token, if there is one
    embedding = any_text_tower(model.clip).token_embedding
    words = embedding(full[first : first + count])
    found = model.prompts(NAMES, len(words))(words[None])[0]
    expected = model.template_features(NAMES, "a film is a {}.")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    gradient = torch.zeros(1, 4, model.width, requires_grad=True)
    model.prompts(NAMES, 4)(gradient)[0, 0, 0].backward()
    assert gradient.grad is not None
    assert gradient.grad.abs().sum() > 0


def test_layers_run_again_and_products_run_in_bfloat16(model: PromptableCLIP) -> None:
    """Gradients are the same to the bit then, and near."""
    drawn = torch.randn(1, 4, model.width, generator=torch.Generator().manual_seed(0))
    context = (0.1 * drawn).requires_grad_()
    made, found, kept = [], [], []
    for again, precision in ((False, FINE), (True, FINE), (False, COARSE)):
        with use_checkpointing(again), PeakMemory() as memory:
            made.append(model.prompts(NAMES, 4, precision)(context))
            kept.append(memory.now)
            found.append(torch.autograd.grad(made[-1][..., 0].sum(), context)[0])
    assert torch.equal(found[0], found[1])
    assert found[0].any()
    assert kept[1] < 0.8 * kept[0]
    assert made[2].dtype == found[2].dtype == torch.float32
    assert (made[0] * made[2]).sum(dim=-1).min() > 0.999
    assert 0 < (found[2] - found[0]).norm() < 0.05 * found[0].norm()


def test_a_round_is_trained_and_attacked(
    saved: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._entries, "some-pictures", picture_data)
    run = train(
        "promptfl",
        folder=tmp_path,
        model=saved[0],
        checkpoint=str(saved[1]),
        dataset="some-pictures",
        settings={"epochs": 1},
        clients=2,
        rounds=1,
        context_tokens=4,
        tested=6,
        test_share=0.3,
        public_share=0.3,
        seed=0,
    )
    attack_one_client(run, "prompt-release", "loss-threshold")


def test_what_cannot_be_taken_is_refused(tmp_path: Path) -> None:
    nowhere = tmp_path / "weights.pt"
    described = architecture("bert", tmp_path / "text")
    config = tmp_path / "small.json"
    (tmp_path / "text" / "own.py").write_text("raise AssertionError('run')\n")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}
    alter("config.json", **own)(tmp_path / "text")
    config.write_text(json.dumps(described))
    never = pytest.raises(ConfigError, match="runs no such code within open_clip")
    with trust_remote_code(), never:
        load_clip(f"open_clip:{config}", nowhere)
    text_config("gpt2").save_pretrained(tmp_path / "text")
    with pytest.raises(ConfigError, match="open_clip takes those of type roberta"):
        load_clip(f"open_clip:{config}", nowhere)
    described["text_cfg"]["hf_model_name"] = str(tmp_path / "nowhere")
    config.write_text(json.dumps(described))
    with pytest.raises(MissingFileError, match="cannot be loaded"):
        load_clip(f"open_clip:{config}", nowhere)
    with pytest.raises(ConfigError, match="these are taken in CLIPs only"):
        load_clip("open_clip:coca_roberta-ViT-B-32", nowhere)


def test_pictures_are_prepared_as_all_of_an_architectures_tags_say() -> None:
    from privaudit.models.families.open_clip import _preparation_of

    open_clip: Any = import_open_clip()
    found = _preparation_of(open_clip, "ViT-B-16-SigLIP")
    assert found["mean"] == found["std"] == (0.5, 0.5, 0.5)
    assert found["resize_mode"] == "squash"
    assert not _preparation_of(open_clip, "small-of-ones-own")


def test_a_text_tower_of_transformers_is_not_tuned(model: PromptableCLIP) -> None:
    with pytest.raises(ConfigError, match=r"or a trainer of prompts|can be tuned in"):
        model.tower(NAMES, "a {}")


CODE = """
from pathlib import Path

from transformers import PreTrainedTokenizerFast

Path({mark!r}).write_text("this code ran")


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
Load = Callable[..., Any]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Return the file that the attack writes if it runs."""
    return tmp_path / "mark"


@pytest.fixture
def described(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Save weights, and a tokenizer that comes with code of its own."""
    modules = import_transformers().dynamic_module_utils
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    made = architecture("bert", tmp_path / "text")
    own = {"AutoTokenizer": [None, "own.OwnTokenizer"]}
    alter("tokenizer_config.json", auto_map=own)(tmp_path / "text")
    (tmp_path / "text" / "own.py").write_text(CODE.format(mark=str(mark)))
    save_file(built(made).state_dict(), tmp_path / "weights.safetensors")
    return made


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(described: dict[str, Any], name: str = "small.json") -> Any:
        (tmp_path / name).write_text(json.dumps(described))
        model = f"open_clip:{tmp_path / name}"
        return load_clip(model, tmp_path / "weights.safetensors")

    return loaded


def test_a_configuration_cannot_allow_a_tokenizers_code(
    described: dict[str, Any], load: Load, mark: Path
) -> None:
    for options in (
        {"trust_remote_code": True},
        {"clean": "whitespace", "trust_remote_code": True},
        {"code_revision": "main"},
        {"cache_dir": "elsewhere"},
        {"bpe_path": "/etc/hostname"},
        ["trust_remote_code"],
        None,
    ):
        described["text_cfg"]["tokenizer_kwargs"] = options
        with pytest.raises(ConfigError, match="clean, language, strip_sep_token"):
            load(described)
        with trust_remote_code(), pytest.raises(ConfigError, match="tokenizer_kwargs"):
            load(described)
    assert not mark.exists()


def test_what_published_configurations_set_is_taken(
    described: dict[str, Any], load: Load, mark: Path
) -> None:
    options = {"clean": "canonicalize", "strip_sep_token": True}
    described["text_cfg"]["tokenizer_kwargs"] = options
    assert load(described).tokenizer.strip_sep_token
    assert not mark.exists()


@pytest.mark.parametrize("scheme", ["local-dir", "hf-hub"])
def test_a_files_name_does_not_name_another_configuration(
    scheme: str,
    described: dict[str, Any],
    load: Load,
    mark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evil = {**described["text_cfg"], "tokenizer_kwargs": {"trust_remote_code": True}}
    inner = {"model_cfg": {**described, "text_cfg": evil}}
    (tmp_path / "text" / "open_clip_config.json").write_text(json.dumps(inner))
    monkeypatch.chdir(tmp_path)
    for named in (True, False):  # without one open_clip reads no options here
        if not named:
            del described["text_cfg"]["hf_tokenizer_name"]
        with pytest.raises(ConfigError, match="has a colon in its file's name"):
            load(described, f"{scheme}:text.json")
    assert not mark.exists()
