from collections.abc import Callable, Sequence
from pathlib import Path
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from privaudit.cli.progress.live import line_of
from privaudit.core.errors import ConfigError, StorageError
from privaudit.core.storage import cache_folder, write_tensors
from privaudit.core.tensors import Tensors
from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.datasets.files.archives import FolderStore
from privaudit.datasets.files.mapped_tensors import write_rows
from privaudit.datasets.images.picture_files import PictureFiles
from privaudit.models import feature_cache
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.feature_cache import (
    cached_features,
    cached_tokens,
    content_hash,
    encoded_features,
)
from privaudit.statistics.progress import Event, Phase, watching


class CountingCLIP(PromptableCLIP):
    """Counts how often pictures are really encoded."""

    encoded = 0

    def encode_images(self, pictures: Tensor, batch: int = 256) -> Tensor:
        self.encoded += 1
        return super().encode_images(pictures, batch)

    def encode_tokens(self, pictures: Tensor, batch: int = 256) -> Tensor:
        self.encoded += 1
        return super().encode_tokens(pictures, batch)


class Gallery:
    """Pictures of different sizes that count how many are asked for."""

    digest = "gallery"
    contents: tuple[bytes, ...] = ()

    def __init__(self, *sizes: tuple[int, int], channels: int = 3) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pictures = [
            torch.rand(channels, *size, generator=generator) for size in sizes
        ]
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        self.read.append(index)
        return self.pictures[index]


@pytest.fixture
def model(build: Callable[..., nn.Module], tokenizer: Any) -> CountingCLIP:
    prepare = PicturePreparation(32, (0.5,) * 3, (0.5,) * 3)
    return CountingCLIP("small", build(), tokenizer, prepare)


@pytest.fixture
def pictures() -> PixelImages:
    generator = torch.Generator().manual_seed(0)
    return PixelImages(torch.rand(3, 3, 32, 32, generator=generator))


def only_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def test_the_second_time_nothing_is_encoded(
    model: CountingCLIP, pictures: PixelImages, tmp_path: Path
) -> None:
    first = cached_features(model, pictures, tmp_path)
    second = cached_features(model, pictures, tmp_path)
    assert torch.equal(first, second)
    assert model.encoded == 1
    assert only_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700


def test_other_pictures_have_other_features(
    model: CountingCLIP, pictures: PixelImages, tmp_path: Path
) -> None:
    cached_features(model, pictures, tmp_path)
    cached_features(model, PixelImages(pictures.pixels.flip(0)), tmp_path)
    assert model.encoded == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "other shape"])
def test_a_damaged_file_is_computed_again(
    model: CountingCLIP, pictures: PixelImages, tmp_path: Path, damage: str
) -> None:
    whole = cached_features(model, pictures, tmp_path).clone()  # the file is cut
    path = only_file(tmp_path)
    if damage == "other shape":
        cached_features(model, PixelImages(pictures.pixels[:1]), tmp_path)
        (other,) = set(tmp_path.rglob("*.safetensors")) - {path}
        other.replace(path)
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -5])
    before = model.encoded
    assert torch.equal(cached_features(model, pictures, tmp_path), whole)
    assert torch.equal(cached_features(model, pictures, tmp_path), whole)
    assert model.encoded == before + 1


def test_a_folder_that_cannot_be_written_costs_only_time(
    model: CountingCLIP, pictures: PixelImages, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for count in (1, 2):
        cached_features(model, pictures, blocked)
        assert model.encoded == count


def test_the_folder_comes_from_the_environment(
    model: CountingCLIP,
    pictures: PixelImages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    cached_features(model, pictures)
    assert only_file(tmp_path).stem == content_hash(model, pictures, "features")


def test_the_name_tells_activations_apart(
    model: CountingCLIP, build: Callable[..., nn.Module], pictures: PixelImages
) -> None:
    clip = build(quick_gelu=True)
    clip.load_state_dict(model.clip.state_dict())
    other = PromptableCLIP("small", clip, model.tokenizer, model.preprocess_batch)
    assert other.model_hash == model.model_hash
    assert content_hash(other, pictures, "features") != content_hash(
        model, pictures, "features"
    )


def test_pictures_of_any_size_keep_their_order_and_are_read_once(
    model: CountingCLIP, tmp_path: Path
) -> None:
    gallery = Gallery((40, 32), (40, 32), (32, 50), (40, 32), (64, 64))
    features = cached_features(model, gallery, tmp_path)
    assert gallery.read == [0, 1, 2, 3, 4]
    assert model.encoded == 1
    for picture, feature in zip(gallery.pictures, features, strict=True):
        alone = model.encode_images(model.preprocess_batch(picture[None]))[0]
        torch.testing.assert_close(feature, alone)
    some = encoded_features(model, gallery, [4, 1])
    torch.testing.assert_close(some, features[[4, 1]])


def test_many_pictures_are_encoded_in_chunks(
    model: CountingCLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privaudit.models.feature_cache._CHUNK", 4)
    monkeypatch.setattr("privaudit.models.feature_cache._BATCH_BYTES", 1)
    gallery = Gallery(*[(8, 8)] * 10, channels=1)
    features = cached_features(model, gallery, tmp_path)
    assert model.encoded == 3
    whole = model.preprocess_batch(torch.stack(gallery.pictures))
    torch.testing.assert_close(features, model.encode_images(whole))


@pytest.mark.parametrize("threads", [1, 3])
def test_features_are_the_same_however_many_threads_decode(
    threads: int, model: CountingCLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk ends where it does, a broken picture stops all, and no thread is left."""
    monkeypatch.setattr("privaudit.models.feature_cache._CHUNK", 4)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 8, 3), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        turned = picture if number % 5 else picture.transpose(1, 0, 2)
        Image.fromarray(turned).save(tmp_path / f"{number:02d}.png")
    files = PictureFiles(FolderStore(tmp_path), FolderStore(tmp_path).names)
    whole = encoded_features(model, files, range(12))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(cached_features(model, files, tmp_path / "cache"), whole)
    some = encoded_features(model, files, [7, 0])
    torch.testing.assert_close(some, whole[[7, 0]])
    (tmp_path / "11.png").write_bytes(b"no picture")
    files = PictureFiles(FolderStore(tmp_path), files.names)
    with pytest.raises(ConfigError, match=r"11\.png in .* is not a picture"):
        cached_features(model, files, tmp_path / "cache")
    assert not [t for t in enumerate_threads() if "ThreadPool" in t.name]


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> Gallery:
    """Chunks begin at its pictures 0, 5 and 11."""
    monkeypatch.setattr("privaudit.models.feature_cache._CHUNK", 4)
    monkeypatch.setattr(
        "privaudit.models.feature_cache._BATCH_BYTES", 3 * 8 * 8 * 4 * 3
    )
    sizes = [(8, 8)] * 2 + [(9, 8)] * 3 + [(8, 8)] * 9
    return Gallery(*sizes)


def killed_at(model: CountingCLIP, gallery: Gallery, folder: Path, call: int) -> None:
    """Encode tokens as a process that is killed while it encodes a chunk."""
    encode = model.encode_tokens

    def encode_or_die(pictures: Tensor, batch: int = 256) -> Tensor:
        if model.encoded == call:
            raise KeyboardInterrupt
        return encode(pictures, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "encode_tokens", encode_or_die)
        with pytest.raises(KeyboardInterrupt):
            cached_tokens(model, gallery, folder)
    model.encoded = 0
    gallery.read.clear()


def test_an_interrupted_encoding_goes_on_where_it_stopped(
    model: CountingCLIP, gallery: Gallery, tmp_path: Path
) -> None:
    whole = cached_tokens(model, gallery, tmp_path / "whole")
    model.encoded = 0
    killed_at(model, gallery, tmp_path, 2)
    tokens = cached_tokens(model, gallery, tmp_path)
    assert model.encoded == 1
    assert gallery.read == [11, 12, 13]
    assert torch.equal(tokens, whole)
    assert only_file(tmp_path / "features").read_bytes() == (
        only_file(tmp_path / "whole").read_bytes()
    )


@pytest.mark.parametrize("damage", ["empty", "cut", "too many", "a folder"])
def test_a_damaged_chunk_is_encoded_anew_and_no_other(
    model: CountingCLIP, gallery: Gallery, tmp_path: Path, damage: str
) -> None:
    whole = cached_tokens(model, gallery, tmp_path / "whole")
    model.encoded = 0
    killed_at(model, gallery, tmp_path, 2)
    (chunk,) = (tmp_path / "features").glob("*.0.unfinished")
    content = chunk.read_bytes()
    if damage == "a folder":
        chunk.unlink()
        chunk.mkdir()
    elif damage == "too many":
        write_tensors(chunk, {"tokens": torch.zeros(len(gallery) + 1, 4, model.dim)})
    else:
        chunk.write_bytes(content[: 0 if damage == "empty" else -5])
    assert torch.equal(cached_tokens(model, gallery, tmp_path), whole)
    assert model.encoded == 2


def test_a_long_encoding_tells_who_watches_how_far_it_is(
    model: CountingCLIP,
    gallery: Gallery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []
    with watching("run", events.append):
        cached_features(model, gallery, tmp_path)
        assert not events
        monkeypatch.setattr("privaudit.models.feature_cache._SILENT", -1.0)
        cached_tokens(model, gallery, tmp_path)
        cached_tokens(model, gallery, tmp_path)
    with watching("other", None):
        cached_tokens(model, gallery, tmp_path / "other")
    assert events == [Phase("run", "encode", "", done, 14) for done in (0, 5, 11)]
    assert line_of(events[1]) == "run: 5/14 pictures encoded"


def test_chunks_stay_where_the_disk_is_too_full_for_all(
    model: CountingCLIP,
    gallery: Gallery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill_up(path: Path, parts: Sequence[Tensors]) -> None:
        if len(parts) > 1:
            raise StorageError("The disk is full.")
        write_rows(path, parts)

    with monkeypatch.context() as patch:
        patch.setattr("privaudit.models.feature_cache.write_rows", fill_up)
        first = cached_tokens(model, gallery, tmp_path)
    assert torch.equal(cached_tokens(model, gallery, tmp_path), first)
    assert model.encoded == 3
    assert only_file(tmp_path).suffix == ".safetensors"


def test_what_is_cached_is_mapped_and_never_changed(
    model: CountingCLIP, pictures: PixelImages, tmp_path: Path
) -> None:
    first = cached_tokens(model, pictures, tmp_path)
    mapped = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(tmp_path) in line
    ]
    assert mapped
    expected = first.clone()
    first.zero_()
    assert torch.equal(cached_tokens(model, pictures, tmp_path), expected)


def test_a_large_bank_goes_through_the_disk_by_rows(
    model: CountingCLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    bank = FeatureBank(torch.randn(7, model.dim, generator=generator))
    whole = cached_features(model, bank, tmp_path)
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(feature_cache, "_BANK_BYTES", 3 * bank.embeddings[:1].nbytes)
    assert torch.equal(cached_features(model, bank, tmp_path), whole)
    only_file(tmp_path)
    monkeypatch.setattr(model, "encode_bank", pytest.fail)
    assert torch.equal(cached_features(model, bank, tmp_path), whole)


def test_a_bank_is_only_normalised_and_has_no_tokens(
    model: CountingCLIP, tmp_path: Path
) -> None:
    bank = FeatureBank(torch.eye(2, model.dim) * 3)
    expected = torch.eye(2, model.dim)
    torch.testing.assert_close(cached_features(model, bank, tmp_path), expected)
    torch.testing.assert_close(encoded_features(model, bank, [1]), expected[1:])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="bank of 2 pooled embeddings"):
        cached_tokens(model, bank, tmp_path)
