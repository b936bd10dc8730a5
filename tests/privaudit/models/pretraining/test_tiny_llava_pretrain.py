"""Pretraining is repeatable, and what it writes is checked when it is read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from typer.testing import CliRunner

from privaudit.cli.commands.pretrain import app
from privaudit.core.errors import ConfigError, MissingFileError, TrainingError
from privaudit.models import tiny_clip
from privaudit.models.pretraining import tiny_llava as module
from privaudit.models.pretraining.tiny_llava import (
    TinyLlavaSettings,
    pretrain,
    starting_model,
    steps_within,
)
from privaudit.models.tiny_llava.weights import TinyLlavaLogLine, load_weights

SMALL = TinyLlavaSettings(
    looking=2, steps=3, batch=4, validate=10, log_every=2, precision="float32"
)
FILES = ("tiny-llava.safetensors", "tiny-llava.json", "tiny-llava.jsonl")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    pretrain(SMALL, folder)
    return folder


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Path:
    """A copy of the trained folder, to be spoiled."""
    return Path(shutil.copytree(once, tmp_path / "copy"))


def test_the_same_settings_write_the_same_weights_and_log_again(
    once: Path, tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    seen: list[TinyLlavaLogLine] = []
    last = pretrain(SMALL, tmp_path, seen.append)
    assert torch.equal(before, torch.random.get_rng_state())
    lines = map(json.loads, (tmp_path / FILES[2]).read_text().splitlines())
    steps = [(line["stage"], line["step"]) for line in lines]
    assert steps == [("looking", 2), ("speaking", 2), ("speaking", 3)]
    assert [record.step for record in seen] == [2, 3]
    assert seen[-1] == last
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    description = json.loads((tmp_path / FILES[1]).read_text())
    assert description["settings"]["steps"] == 3
    assert description["last"]["step"] == 3
    assert (tmp_path / FILES[0]).read_bytes() == (once / FILES[0]).read_bytes()


def test_the_stored_weights_load_frozen_and_give_their_hash(trained: Path) -> None:
    model, found = load_weights(trained)
    assert found == json.loads((trained / FILES[1]).read_text())["sha256"]
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_altered_weights_are_refused(trained: Path) -> None:
    weights = trained / FILES[0]
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"should have the SHA-256 .* has"):
        load_weights(trained)


@pytest.mark.parametrize("missing", FILES[:2])
def test_a_missing_file_is_named(trained: Path, missing: str) -> None:
    (trained / missing).unlink()
    with pytest.raises(MissingFileError, match=missing):
        load_weights(trained)


def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> torch.Tensor:
        return torch.tensor(float("nan"))

    monkeypatch.setattr(module, "answer_loss", broken)
    with pytest.raises(TrainingError, match="loss of step 1 is nan"):
        pretrain(SMALL, tmp_path)


def test_the_tower_starts_as_tiny_clips_or_at_random() -> None:
    known = tiny_clip.load().model.visual.layer3[0].conv1.weight
    started = starting_model(SMALL).encoder.tower.layer3[0].conv1.weight
    assert torch.equal(known, started)
    settings = TinyLlavaSettings(tower="random")
    random = starting_model(settings).encoder.tower.layer3[0].conv1.weight
    assert not torch.equal(known, random)


@pytest.mark.parametrize("field", ["steps", "batch", "log_every"])
def test_a_setting_of_zero_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(TinyLlavaSettings).validate_python({field: 0})


def test_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 0"):
        steps_within(0.0, SMALL)


def test_twice_the_time_holds_more_steps() -> None:
    assert steps_within(100.0, SMALL) > steps_within(1.0, SMALL) >= 1


def test_the_command_passes_its_options_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[TinyLlavaSettings, Path]] = []
    monkeypatch.setattr(module, "pretrain", lambda s, out, _: asked.append((s, out)))
    monkeypatch.setattr(module, "steps_within", lambda minutes, _: int(100 * minutes))
    out = ["tiny-llava", "--out", str(tmp_path)]
    for further in (["--steps", "7"], ["--minutes", "2", "--seed", "3"]):
        assert CliRunner().invoke(app, out + further).exit_code == 0
    assert [(s.steps, s.seed, path) for s, path in asked] == [
        (7, 0, tmp_path),
        (200, 3, tmp_path),
    ]
