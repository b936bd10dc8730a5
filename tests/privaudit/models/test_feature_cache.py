from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit.models.feature_cache import (
    cached_features,
    content_hash,
    default_folder,
)
from privaudit.models.picture_preparation import PicturePreparation
from privaudit.models.promptable_clip import PromptableCLIP


class CountingCLIP(PromptableCLIP):
    """Counts how often pictures are really encoded."""

    encoded = 0

    def encode_images(self, pictures: Tensor, batch: int = 256) -> Tensor:
        self.encoded += 1
        return super().encode_images(pictures, batch)


@pytest.fixture
def model(build: Callable[..., nn.Module], tokenizer: Any) -> CountingCLIP:
    prepare = PicturePreparation(32, (0.5,) * 3, (0.5,) * 3)
    return CountingCLIP("small", build(), tokenizer, prepare)


@pytest.fixture
def pictures() -> Tensor:
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def only_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def test_the_second_time_nothing_is_encoded(
    model: CountingCLIP, pictures: Tensor, tmp_path: Path
) -> None:
    first = cached_features(model, pictures, tmp_path)
    second = cached_features(model, pictures, tmp_path)
    assert torch.equal(first, second)
    assert model.encoded == 1
    assert only_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700


def test_other_pictures_have_other_features(
    model: CountingCLIP, pictures: Tensor, tmp_path: Path
) -> None:
    cached_features(model, pictures, tmp_path)
    cached_features(model, pictures.flip(0), tmp_path)
    assert model.encoded == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "other shape"])
def test_a_damaged_file_is_computed_again(
    model: CountingCLIP, pictures: Tensor, tmp_path: Path, damage: str
) -> None:
    whole = cached_features(model, pictures, tmp_path)
    path = only_file(tmp_path)
    if damage == "other shape":
        cached_features(model, pictures[:1], tmp_path)
        (other,) = set(tmp_path.rglob("*.safetensors")) - {path}
        other.replace(path)
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -5])
    before = model.encoded
    assert torch.equal(cached_features(model, pictures, tmp_path), whole)
    assert torch.equal(cached_features(model, pictures, tmp_path), whole)
    assert model.encoded == before + 1


def test_a_folder_that_cannot_be_written_costs_only_time(
    model: CountingCLIP, pictures: Tensor, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for count in (1, 2):
        cached_features(model, pictures, blocked)
        assert model.encoded == count


def test_the_folder_comes_from_the_environment(
    model: CountingCLIP,
    pictures: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    cached_features(model, pictures)
    assert only_file(tmp_path).name.startswith(content_hash(model, pictures))


def test_the_name_tells_activations_apart(
    model: CountingCLIP, build: Callable[..., nn.Module], pictures: Tensor
) -> None:
    clip = build(quick_gelu=True)
    clip.load_state_dict(model.clip.state_dict())
    other = PromptableCLIP("small", clip, model.tokenizer, model.preprocess_batch)
    assert other.model_hash == model.model_hash
    assert content_hash(other, pictures) != content_hash(model, pictures)
