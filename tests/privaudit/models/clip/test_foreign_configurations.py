"""A configuration of open_clip that somebody else wrote runs nobody's code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from privaudit.core.errors import ConfigError
from privaudit.models.hugging_face import import_transformers
from privaudit.models.remote_code import trust_remote_code
from tests.loaded_models import load_clip
from tests.privaudit.models.clip.test_open_clip_towers import architecture, built
from tests.small_transformers import alter

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
