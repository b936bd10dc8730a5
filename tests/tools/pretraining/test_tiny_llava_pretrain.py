from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from privaudit.core.errors import ConfigError
from privaudit.models.tiny_clip.loading import load
from privaudit_tools.commands.pretrain import app
from privaudit_tools.pretraining import tiny_llava as module
from privaudit_tools.pretraining.tiny_llava import (
    TinyLlavaLogLine,
    TinyLlavaSettings,
    starting_model,
)


def test_the_tower_starts_as_tiny_clips_or_at_random() -> None:
    known = load().model.get_parameter("visual.layer3.0.conv1.weight")
    started = starting_model(TinyLlavaSettings()).encoder.tower.layer3[0].conv1.weight
    assert torch.equal(known, started)
    settings = TinyLlavaSettings(tower="random")
    random = starting_model(settings).encoder.tower.layer3[0].conv1.weight
    assert not torch.equal(known, random)


def test_steps_fill_the_time_that_the_tower_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second each: 1,500 of the tower, and the rest of 100 minutes."""
    monkeypatch.setattr(module, "seconds_a_step", lambda steps: len(list(steps)) / 6)
    settings = TinyLlavaSettings(batch=4, validate=10, precision="float32")
    for minutes, said in ((0.0, "more than 0"), (25.0, "1500 steps, .* take 25.0")):
        with pytest.raises(ConfigError, match=said):
            module.steps_within(minutes, settings)
    assert module.steps_within(100.0, settings) == 4500


def test_the_command_passes_its_options_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[TinyLlavaSettings, Path]] = []

    def pretrain(settings: TinyLlavaSettings, out: Path, _: object) -> TinyLlavaLogLine:
        asked.append((settings, out))
        return TinyLlavaLogLine("looking", 1, 0.5, 1.0, {})

    monkeypatch.setattr(module, "pretrain", pretrain)
    monkeypatch.setattr(module, "steps_within", lambda minutes, _: int(100 * minutes))
    out = ["tiny-llava", "--out", str(tmp_path)]
    for further in (["--steps", "7"], ["--minutes", "2", "--seed", "3"]):
        assert CliRunner().invoke(app, out + further).exit_code == 0
    assert CliRunner().invoke(app, [*out, "--steps", "7", "--minutes", "2"]).exception
    assert [(s.steps, s.seed, path) for s, path in asked] == [
        (7, 0, tmp_path),
        (200, 3, tmp_path),
    ]
