"""Code that comes with a model runs only where --trust-remote-code is given."""

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import DATASETS
from privaudit.models.hugging_face import import_transformers
from privaudit.models.registry import load_frozen
from privaudit.models.remote_code import remote_code_is_trusted, trust_remote_code
from privaudit.runs.run import Run
from tests.conftest import Cli
from tests.small_records import text_data
from tests.small_transformers import save
from tests.small_vlms import save_vlm

CODE = """
from pathlib import Path

from transformers import BertConfig, BertModel

Path({mark!r}).write_text("this code ran")


class OwnConfig(BertConfig):
    model_type = "own-bert"


class OwnModel(BertModel):
    config_class = OwnConfig
"""
READERS = """
from pathlib import Path

from transformers import CLIPImageProcessor, PreTrainedTokenizerFast, ProcessorMixin

Path({mark!r}).write_text("this code ran")


class Own(PreTrainedTokenizerFast):
    pass


class OwnPictures(CLIPImageProcessor):
    pass


class OwnProcessor(ProcessorMixin):
    pass
"""
_WHAT_READS = {
    "tokenizer_config.json": (
        "tokenizer_class",
        {"AutoTokenizer": [None, "own.Own"], "AutoProcessor": "own.OwnProcessor"},
    ),
    "preprocessor_config.json": (
        "image_processor_type",
        {"AutoImageProcessor": "own.OwnPictures", "AutoProcessor": "own.OwnProcessor"},
    ),
    "processor_config.json": ("processor_class", {"AutoProcessor": "own.OwnProcessor"}),
}
VLM = "vlm-llava"
_BY_MODEL = ("encoder-bert", "decoder-gpt2", "seq2seq-t5")
"""Families whose tokenizer transformers knows by the model's type."""
TRAIN = (
    *("train", "--trainer", "fedpt", "--dataset", "some-texts", "--name", "one"),
    *("--clients", 2, "--rounds", 1, "--tested", 2, "--set", "epochs=1"),
)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._entries, "some-texts", text_data)
    modules = import_transformers().dynamic_module_utils
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Return the file that the attack writes if it runs."""
    return tmp_path / "mark"


@pytest.fixture
def model(tmp_path: Path, mark: Path) -> str:
    name = save(tmp_path / "model", "encoder-bert")
    config = tmp_path / "model" / "config.json"
    written = json.loads(config.read_text()) | {"model_type": "own-bert"}
    written["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    config.write_text(json.dumps(written))
    (tmp_path / "model" / "own.py").write_text(CODE.format(mark=str(mark)))
    return name


def test_it_does_not_run_unless_it_is_trusted(
    model: str, mark: Path, tmp_path: Path, cli: Cli
) -> None:
    for family in ("encoder", "vit", "clip", "vlm", "llava", "decoder", "seq2seq"):
        with pytest.raises(ConfigError, match="runs no such code unless"):
            load_frozen(f"{family}:{tmp_path / 'model'}")
    said = cli.refused(*TRAIN, "--model", model, "--runs", tmp_path / "runs")
    assert "--trust-remote-code" in said
    assert not mark.exists()
    assert not list(tmp_path.glob("runs/*/run.json"))


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize(
    "family",
    ["encoder-bert", "decoder-gpt2", "seq2seq-t5", "vit-ViT", "clip", "blip-opt", VLM],
)
def test_code_of_tokenizers_and_processors_does_not_run(
    family: str, unknown: bool, mark: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    name = save_vlm(folder, "llava") if family == VLM else save(folder, family)
    (folder / "own.py").write_text(READERS.format(mark=str(mark)))
    for file, (kind, own) in _WHAT_READS.items():
        path = folder / file
        if path.is_file():
            said = json.loads(path.read_text()) | {"auto_map": own}
            path.write_text(json.dumps(said | ({kind: "Own"} if unknown else {})))
    names = [name, f"llava:{folder}"] if family == VLM else [name]
    refuses = unknown and family not in _BY_MODEL
    for one in names:
        refused = pytest.raises(ConfigError, match="runs no such code unless")
        with refused if refuses else nullcontext():
            load_frozen(one)
    assert not mark.exists()
    with trust_remote_code(), suppress(Exception):  # whatever the foreign classes lack
        load_frozen(name)
    assert mark.exists()


def test_a_run_says_that_it_was_trusted_and_an_attack_asks_again(
    model: str, mark: Path, tmp_path: Path, cli: Cli
) -> None:
    runs = ("--runs", tmp_path / "runs")
    code, _, said = cli(*TRAIN, "--model", model, *runs, "--trust-remote-code")
    assert code == 0, said
    assert mark.read_text() == "this code ran"
    assert not remote_code_is_trusted()
    run = Run(tmp_path / "runs" / "one")
    assert json.loads((run.path / "run.json").read_text())["remote_code"] is True
    mark.unlink()
    attack = ("attack", "one", "--shadows", 0, *runs)
    assert "--trust-remote-code" in cli.refused(*attack)
    assert not mark.exists()
    shown = cli.done(*attack, "--trust-remote-code")
    assert "allowed to run code of its own" in " ".join(shown.split())
    page = next(run.path.rglob("report.html")).read_text()
    assert "Foreign code." in page
    check_what_reads_it(cli, tmp_path / "public", runs)


def check_what_reads_it(cli: Cli, public: Path, runs: tuple[Any, ...]) -> None:
    """Refuse and take the option in each command that loads the model of a run."""
    code, _, said = cli("export", "one", "--public", public, *runs)
    assert code == 0, said
    for command in (
        ("lint", "one"),
        ("verify", public, "one", "--again"),
        ("costs", "one", "--no-probe"),
    ):
        code, shown, said = cli(*command, *runs)
        assert code == (1 if "--again" in command else 2), command
        assert "--trust-remote-code" in shown + said
        code, _, said = cli(*command, *runs, "--trust-remote-code")
        assert code == 0, (command, said)


def test_trust_ends_with_the_block() -> None:
    with trust_remote_code():
        assert remote_code_is_trusted()
        with trust_remote_code(False):
            assert not remote_code_is_trusted()
    assert not remote_code_is_trusted()
