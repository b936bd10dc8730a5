"""What both embedded models' pretraining does: repeatable, and checked when read."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from privaudit.core.errors import ConfigError, MissingFileError, TrainingError
from privaudit.core.portable_bits import bits_here
from privaudit.models.weight_files import load_embedded
from privaudit_tools.pretraining import tiny_clip, tiny_llava
from tests.conftest import Cli
from tests.privaudit.cli.test_json import valid


@dataclass(frozen=True)
class Kind:
    """What differs between the two.

    Attributes:
        name: Of its files.
        module: What trains it.
        small: Settings that take a moment.
        steps: What the log says, in order.
        loss: The name of its loss in the module.
    """

    name: str
    module: Any
    small: Any
    steps: list[tuple[str | None, int]]
    loss: str

    def load(self, folder: Path) -> Any:
        build = self.module.WEIGHTS.build
        return load_embedded(folder, self.name, build)[0]

    @property
    def files(self) -> tuple[str, str, str]:
        stem = self.name
        return f"{stem}.safetensors", f"{stem}.json", f"{stem}.jsonl"


QUICK: Mapping[str, Any] = {"steps": 3, "validate": 10, "log_every": 2}
CLIP = Kind(
    "tiny-clip",
    tiny_clip,
    tiny_clip.TinyClipSettings(**QUICK, batch=8, copies=1, precision="float32"),
    [(None, 2), (None, 3)],
    "contrastive_loss",
)
LLAVA = Kind(
    "tiny-llava",
    tiny_llava,
    tiny_llava.TinyLlavaSettings(**QUICK, batch=4, looking=2, precision="float32"),
    [("looking", 2), ("speaking", 2), ("speaking", 3)],
    "answer_loss",
)


@pytest.fixture(scope="module", params=[CLIP, LLAVA], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """Two fonts in place of twenty, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privaudit_tools.pretraining.marks.FONTS", ("cmr10",))
        patch.setattr("privaudit_tools.pretraining.marks.HELD_OUT_FONTS", ("cmss10",))
        yield request.param


@pytest.fixture(scope="module")
def once(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    kind.module.pretrain(kind.small, folder)
    return folder


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Path:
    """A copy of the trained folder, to be spoiled."""
    return Path(shutil.copytree(once, tmp_path / "copy"))


def test_the_same_settings_write_the_same_weights_and_log_again(
    kind: Kind, once: Path, tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    seen: list[Any] = []
    last = kind.module.pretrain(kind.small, tmp_path, seen.append)
    assert torch.equal(before, torch.random.get_rng_state())
    weights, description, log = (tmp_path / name for name in kind.files)
    lines = map(json.loads, log.read_text().splitlines())
    assert [(line.get("stage"), line["step"]) for line in lines] == kind.steps
    assert [record.step for record in seen] == [2, 3]
    assert seen[-1] == last
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kind.files)
    said = json.loads(description.read_text())
    assert said["settings"]["steps"] == said["last"]["step"] == 3
    assert said["bits"] == bits_here()
    assert weights.read_bytes() == (once / weights.name).read_bytes()


def test_json_of_the_command_is_of_its_schema(
    kind: Kind, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind.module, type(kind.small).__name__, lambda **_: kind.small)
    (said,) = valid(cli, "pretrain", kind.name, "--out", tmp_path)
    assert (said["path"], said["model"], said["found"]["step"]) == (
        str(tmp_path), None, 3,
    )  # fmt: skip


def test_the_stored_weights_load_frozen(kind: Kind, trained: Path) -> None:
    model = kind.load(trained)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_altered_weights_are_refused_and_a_missing_file_is_named(
    kind: Kind, trained: Path
) -> None:
    weights = trained / kind.files[0]
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"should have the SHA-256 .* has"):
        kind.load(trained)
    for missing in (kind.files[1], kind.files[0]):
        (trained / missing).unlink()
        with pytest.raises(MissingFileError, match=missing):
            kind.load(trained)


def test_a_loss_that_is_not_finite_stops_the_run(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = torch.tensor(float("nan"))
    monkeypatch.setattr(kind.module, kind.loss, lambda *_: nan)
    with pytest.raises(TrainingError, match="loss of step 1 is nan"):
        kind.module.pretrain(kind.small, tmp_path)


@pytest.mark.parametrize("field", ["steps", "batch", "log_every"])
def test_a_setting_of_zero_is_refused(kind: Kind, field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(type(kind.small)).validate_python({field: 0})
