from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.recording.hugging_face import RecordingCallback, tensors_of
from tests.privaudit.recording.small_federation import recorded_messages


def at(step: int, first: bool = True) -> Any:
    return SimpleNamespace(global_step=step, is_world_process_zero=first)


def tell(callback: RecordingCallback, *events: str | int, first: bool = True) -> None:
    """Play a training: events of the Trainer's, and steps, which add 1 to a weight."""
    model, step = torch.nn.Linear(1, 1, bias=False), 0
    torch.nn.init.zeros_(model.weight)
    for event in events:
        if isinstance(event, int):
            step += event
            model.weight.data += event
        else:
            getattr(callback, f"on_{event}")(None, at(step, first), None, model=model)


def recorded_weights(folder: Path) -> list[tuple[str, float]]:
    return [(m.kind, float(m.tensors["weight"])) for m in recorded_messages(folder)]


def test_checkpoints_are_uploads_and_what_follows_the_last_one_too(
    tmp_path: Path,
) -> None:
    events = ("train_begin", 2, "save", "epoch_end", 3, "save", "save", 1, "train_end")
    tell(RecordingCallback(tmp_path / "run"), *events)
    assert recorded_weights(tmp_path / "run") == [
        *(("broadcast", 0.0), ("update", 2.0)),
        *(("broadcast", 2.0), ("update", 5.0)),
        *(("broadcast", 5.0), ("update", 6.0)),
        *(("broadcast", 6.0), ("release", 6.0)),
    ]


def test_an_epoch_may_be_a_checkpoint(tmp_path: Path) -> None:
    events = ("train_begin", 2, "save", 1, "epoch_end", "save", "train_end")
    tell(RecordingCallback(tmp_path / "run", at="epoch", client="lab"), *events)
    assert [kind for kind, _ in recorded_weights(tmp_path / "run")].count("update") == 1
    found = recorded_messages(tmp_path / "run")
    assert {m.receiver for m in found} == {"lab", "server", "public"}


def test_only_the_first_process_records(tmp_path: Path) -> None:
    tell(
        RecordingCallback(tmp_path / "run"),
        "train_begin", 1, "save", "train_end", first=False,
    )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Say save or epoch"):
        RecordingCallback(tmp_path / "run", at="step")
    with pytest.raises(ConfigError, match="has nothing to be trained"):
        tensors_of(torch.nn.Linear(2, 2).requires_grad_(False))
    sharded = torch.nn.Linear(2, 2)
    sharded.weight.data = torch.zeros(0)
    with pytest.raises(ConfigError, match="holds parts of its tensors"):
        tensors_of(sharded)
