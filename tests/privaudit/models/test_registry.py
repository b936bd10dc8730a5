"""What holds for every family of models; a new row or file is tested here."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privaudit.cli.list import names_of
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.models.families import MODULES
from privaudit.models.families.built_in import FAMILIES
from privaudit.models.registry import MODELS, find_family, list_models, load_frozen
from privaudit.models.tiny_clip import loading as loading_clip
from privaudit.models.tiny_llava import loading as loading_llava

LISTED = """
classification: clip:FOLDER_OR_HUB_NAME encoder:FOLDER_OR_HUB_NAME open_clip:ARCH
classification: open_clip:ARCH@TAG tiny-clip vit:FOLDER_OR_HUB_NAME
generation: blip:FOLDER_OR_HUB_NAME decoder:FOLDER_OR_HUB_NAME
generation: llava:FOLDER_OR_HUB_NAME seq2seq:FOLDER_OR_HUB_NAME tiny-llava
"""


def test_every_family_is_listed_with_its_task() -> None:
    lines = [line.split(": ") for line in LISTED.strip().splitlines()]
    known = {(name, task) for task, names in lines for name in names.split()}
    assert known <= set(list_models())
    assert list(list_models()) == list(names_of("models"))


@pytest.mark.parametrize("name", [name for name, _ in list_models()])
def test_a_name_finds_its_family(name: str) -> None:
    kind, _, source = name.partition(":")
    family = find_family(name)
    assert family is MODELS.find(kind)
    assert source in (family.sources or ("",))


def test_those_that_read_texts_say_so() -> None:
    readers = {kind for kind in MODELS.names() if MODELS.find(kind).records == "texts"}
    assert readers >= {"encoder", "decoder", "seq2seq"}
    assert not readers & {"clip", "vit", "blip", "tiny-clip", "tiny-llava"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tinyclip", "Did you mean 'tiny-clip'"),
        ("tiny-lava", "Did you mean 'tiny-llava'"),
        ("encode:mine", "encoder:FOLDER_OR_HUB_NAME"),
        ("llava", "No model is called 'llava'"),
        ("tiny-clip:mine", "No model is called 'tiny-clip:mine'"),
    ],
)
def test_an_unknown_name_comes_with_the_known(name: str, says: str) -> None:
    with pytest.raises(UnknownNameError, match=says):
        find_family(name)


@pytest.mark.parametrize("kind", ["aligned", "language", "surrogate"])
def test_what_another_package_loads_says_which(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODELS, "_plugins", lambda name="": [])
    monkeypatch.delitem(MODELS._entries, kind, raising=False)
    with pytest.raises(ConfigError, match=r"pip install \./tools"):
        find_family(f"{kind}:mine")


@pytest.mark.parametrize("kind", ["llava", "encoder"])
def test_a_name_without_its_source_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"names no model. Write {kind}:FOLDER"):
        find_family(f"{kind}:")


@pytest.mark.parametrize("name", [n for n, _ in list_models() if "open_clip" not in n])
def test_models_with_weights_of_their_own_take_no_checkpoint(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="own weights"):
        load_frozen(name, checkpoint=tmp_path / "weights.pt")


@pytest.mark.parametrize("name", ["tiny-clip", "open_clip:ViT-B-16"])
def test_layers_of_a_model_that_is_not_tuned_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no layer of"):
        load_frozen(name, targets="q_proj")


@pytest.mark.parametrize(
    ("loading", "most"),
    [(loading_clip, 4_000_000), (loading_llava, 8_000_000)],
    ids=["tiny-clip", "tiny-llava"],
)
def test_embedded_weights_are_small_and_those_of_their_description(
    loading: Any, most: int
) -> None:
    folder = Path(loading.__file__).parent
    path = folder / folder.name.replace("_", "-")
    description = json.loads(path.with_suffix(".json").read_text())
    content = path.with_suffix(".safetensors").read_bytes()
    assert len(content) <= most
    digest = hashlib.sha256(content).hexdigest()
    assert digest == description["sha256"]
    assert getattr(loading.load(), "model_hash", digest) == digest
    assert description["configuration"] == loading.configuration()
    last = path.with_suffix(".jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == description["last"]


def test_a_look_up_imports_the_table_and_no_model() -> None:
    assert set(MODULES) == set(FAMILIES)
    code = (
        "import sys; from privaudit.models.registry import find_family\n"
        "find_family('vit:mine')\n"
        "heavy = 'promptable_clip', 'stacked_language', 'tuned_modules', 'open_clip'\n"
        "assert not [n for n in sys.modules if n.endswith(heavy)]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
