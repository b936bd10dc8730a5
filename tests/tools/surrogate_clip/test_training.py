"""A surrogate learns its public records, says so, and reads nothing else."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.portable_bits import bits_here
from privaudit.datasets.dataset import (
    TEST_SPLIT,
    TRAIN,
    VALIDATION,
    Dataset,
    FeatureBank,
)
from privaudit.datasets.dataset import PixelImages as Pixels
from privaudit.models.feature_cache import cached_features, cached_tokens
from privaudit_tools.surrogate_clip import making as command
from privaudit_tools.surrogate_clip.making import make_surrogate, public_part
from privaudit_tools.surrogate_clip.public_split import (
    drawn_records,
    unseen_records,
    validation_records,
)
from privaudit_tools.surrogate_clip.storage import (
    FILE,
    BankShape,
    ResNetShape,
    SurrogateSettings,
    SurrogateShape,
    build_model,
)
from privaudit_tools.surrogate_clip.training import (
    pretrain,
    steps_within,
)
from tests.conftest import Cli
from tests.loaded_models import load_clip, spelled
from tests.privaudit.cli.test_json import valid

NAMES = ("cat", "Palm_tree", "dog", "hot air balloon")
FILES = ("surrogate-clip.safetensors", "surrogate-clip.json")
QUICK: Mapping[str, Any] = {"steps": 30, "batch": 24, "warmup": 2, "log_every": 20}


def labelled(images: Any, labels: Tensor) -> Dataset:
    split = torch.arange(len(labels)) % 3
    return Dataset(images, labels, NAMES, "the {}.", split=split)


@pytest.fixture(scope="module")
def bank() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) // 3 % 4
    centres = 2 * torch.randn(4, 12, generator=generator)
    noise = torch.randn(240, 12, generator=generator)
    return labelled(FeatureBank(centres[labels] + noise), labels)


@pytest.fixture(scope="module")
def pictures() -> Dataset:
    """Pictures of one colour each, and noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) // 3 % 4
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    noise = torch.rand(120, 3, 20, 16, generator=generator)
    return labelled(Pixels(0.5 * (colours[labels, :, None, None] + noise)), labels)


@pytest.fixture(scope="module")
def pretrained(bank: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("surrogate") / "bank"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "load_dataset", lambda name, path: bank)
        make_surrogate("drawn", folder, settings=QUICK)
    return folder


@pytest.fixture
def folder(pretrained: Path, tmp_path: Path) -> Path:
    """A copy, to be spoiled."""
    for name in FILES:
        (tmp_path / name).write_bytes((pretrained / name).read_bytes())
    return tmp_path


def test_a_surrogate_of_a_bank_knows_its_classes(
    pretrained: Path, bank: Dataset
) -> None:
    made = FILE.read(pretrained)
    assert made.accuracies.records == 80
    assert made.accuracies.template > 0.85
    assert made.accuracies.random_context > 0.5
    assert (made.dataset, made.class_names) == ("drawn", NAMES)
    assert made.public_split == "validation"
    model = load_clip(f"surrogate:{pretrained}")
    features = cached_features(model, bank.pictures)
    texts = model.template_features(NAMES, "a photo of a {}.")
    hits = (features @ texts.T).argmax(1) == bank.labels
    assert hits[bank.split != VALIDATION].float().mean() > 0.85


def test_it_says_which_records_of_which_data_set_it_has_seen(
    pretrained: Path, bank: Dataset
) -> None:
    model = load_clip(f"surrogate:{pretrained}")
    assert bank.split is not None
    seen = (bank.split == VALIDATION).nonzero()[:, 0]
    assert model.public_indices == tuple(seen.tolist())
    other = replace(bank, template="{}")
    np.testing.assert_array_equal(model.known_records(other), seen)


def test_prompts_take_the_shared_prefix(pretrained: Path) -> None:
    model = load_clip(f"surrogate:{pretrained}")
    prompts = model.prompts(NAMES, 16)
    assert prompts._shared is not None
    found = model.prompts(NAMES, 4)(spelled(model, "a photo of a")[None])[0]
    torch.testing.assert_close(found, model.template_features(NAMES))
    ids = model.tokenizer(["a photo of a palm tree."], model.clip.context_length)
    expected = model.clip.encode_text(ids, normalize=True)
    torch.testing.assert_close(found[1:2], expected)


def test_public_records_have_influence_and_others_have_none(bank: Dataset) -> None:
    public = validation_records(bank)
    assert isinstance(bank.images, FeatureBank)
    embeddings = bank.images.embeddings.clone()
    embeddings[bank.split != VALIDATION] = 7.0
    other = replace(bank, images=FeatureBank(embeddings))
    shape, settings = SurrogateShape(BankShape(12)), SurrogateSettings(steps=3)
    fewer = replace(public, indices=public.indices[1:])
    first, second, third = (
        pretrain(*made, shape, settings).model.state_dict()
        for made in ((bank, public), (other, public), (bank, fewer))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["text.text_projection"], third["text.text_projection"])


def test_a_surrogate_from_pictures_has_tokens(
    pictures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_dataset", lambda name, path: pictures)
    made = make_surrogate(
        "drawn",
        tmp_path / "made",
        share=0.8,
        picture={"size": 16, "width": 2},
        settings={**QUICK, "steps": 8, "learning_rate": 0.01},
    )
    assert made.log[-1].loss < 2.6  # two losses, from log 4 = 1.39 each
    model = load_clip(f"surrogate:{tmp_path / 'made'}")
    assert cached_tokens(model, pictures.pictures, tmp_path).shape == (
        120,
        4,
        model.dim,
    )
    assert model.image_size == 16


def test_the_loss_on_tokens_counts_by_its_weight(pictures: Dataset) -> None:
    public = validation_records(pictures)
    shape = SurrogateShape(ResNetShape(size=16, width=2))
    losses = []
    for weight in (0.0, 1.0, 2.0):
        settings = SurrogateSettings(steps=1, batch=8, tokens=weight)
        losses.append(pretrain(pictures, public, shape, settings).log[-1].loss)
    assert losses[2] - losses[1] == pytest.approx(losses[1] - losses[0], rel=1e-3)
    assert losses[1] > losses[0]


@pytest.mark.parametrize(("stem", "grid"), [(1, 8), (2, 4), (4, 2)])
def test_the_stem_keeps_as_much_of_the_picture_as_it_says(stem: int, grid: int) -> None:
    shape = SurrogateShape(ResNetShape(size=64, width=2, stem=stem))  # type: ignore[arg-type]
    model = build_model(shape, 200, 26).eval()
    kept: list[Tensor] = []
    model.visual.layer4.register_forward_hook(lambda *args: kept.append(args[-1]))
    assert model.encode_image(torch.zeros(1, 3, 64, 64)).shape == (1, shape.dim)
    assert kept[0].shape[-2:] == (grid, grid)


def test_public_records_are_drawn_from_the_training_part(bank: Dataset) -> None:
    drawn = drawn_records(bank, 0.25, seed=3)
    assert (drawn.split, len(drawn.indices)) == (None, 20)
    assert bank.split is not None
    assert (bank.split[drawn.indices] == TRAIN).all()
    assert torch.equal(drawn.indices, drawn_records(bank, 0.25, seed=3).indices)
    whole = replace(bank, split=None)
    assert len(public_part(whole, None, None, 0).indices) == 48
    assert public_part(bank, None, None, 0).split == "validation"
    assert public_part(bank, None, 0.25, 0).split is None


def test_impossible_public_parts_are_refused(bank: Dataset) -> None:
    whole = replace(bank, split=None)
    with pytest.raises(ConfigError, match="this data set has none"):
        public_part(whole, "validation", None, 0)
    with pytest.raises(ConfigError, match="train split, which clients"):
        public_part(bank, "train", None, 0)
    with pytest.raises(ConfigError, match="one of --split and --share"):
        public_part(bank, "validation", 0.1, 0)
    for share in (0.0, 1.0, -1.0, 0.001):
        with pytest.raises(ConfigError, match="cannot be public"):
            drawn_records(bank, share, 0)
    with pytest.raises(ConfigError, match="leaves one to measure on"):
        drawn_records(whole, 0.999, 0)


def test_shapes_that_do_not_fit_the_data_set_are_refused(
    bank: Dataset, pictures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, settings = validation_records(bank), SurrogateSettings(steps=1)
    with pytest.raises(ConfigError, match="embeddings of 12 numbers"):
        pretrain(bank, public, SurrogateShape(BankShape(13)), settings)
    with pytest.raises(ConfigError, match="holds pictures"):
        pretrain(pictures, public, SurrogateShape(BankShape(12)), settings)
    monkeypatch.setattr(command, "load_dataset", lambda name, path: bank)
    with pytest.raises(ConfigError, match="--size 96 was given"):
        make_surrogate("drawn", tmp_path, picture={"size": 96})
    for wrong in ({"steps": 0}, {"stepss": 1}, {"texts": {"words": 2}}):
        with pytest.raises(ConfigError, match="pretraining cannot take"):
            make_surrogate("drawn", tmp_path, settings=wrong)
    monkeypatch.setattr(command, "load_dataset", lambda name, path: pictures)
    with pytest.raises(ConfigError, match="30 pixels do not shrink by 8"):
        make_surrogate("drawn", tmp_path, picture={"size": 30})


def test_a_bank_is_no_pictures_and_the_other_way_round(pretrained: Path) -> None:
    model = load_clip(f"surrogate:{pretrained}")
    with pytest.raises(ConfigError, match="was given 2 pictures"):
        model.preprocess_batch(torch.zeros(2, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"takes embeddings of 12 .* have 5"):
        model.encode_bank(torch.zeros(2, 5))


def test_altered_files_are_refused_and_missing_ones_named(folder: Path) -> None:
    weights, description = (folder / name for name in FILES)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"should have the SHA-256 .* has"):
        load_clip(f"surrogate:{folder}")
    entries = json.loads(description.read_text())
    content[-1] ^= 1
    weights.write_bytes(content)
    shape = entries["shape"]
    assert entries["bits"] == bits_here()
    for altered, message in (
        ({"context_length": 0}, r"no surrogate \(context_length"),
        ({"public_indices": [-5]}, r"no surrogate \(public_indices"),
        ({"shape": {**shape, "text_heads": 3}}, "no 3 heads"),
        ({"shape": {**shape, "dim": 10**6}}, "a model of other sizes"),
        ({"shape": {**shape, "text_layers": 1}}, "a model of other sizes"),
        ({"log": 0}, r"no surrogate \(log"),
    ):
        description.write_text(json.dumps(entries | altered))
        with pytest.raises(ConfigError, match=message):
            load_clip(f"surrogate:{folder}")
    description.write_text(json.dumps(entries))
    for missing in FILES:
        (folder / missing).unlink()
        with pytest.raises(MissingFileError, match=missing):
            load_clip(f"surrogate:{folder}")


def test_a_surrogate_takes_no_checkpoint_and_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own weights"):
        load_clip("surrogate:somewhere", tmp_path)
    with pytest.raises(ConfigError, match="names no model"):
        load_clip("surrogate:")
    with pytest.raises(MissingFileError, match="no surrogate in nowhere"):
        load_clip("surrogate:nowhere")


def test_the_same_settings_give_the_same_weights(
    bank: Dataset, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_dataset", lambda name, path: bank)
    seen: list[Any] = []
    before = torch.random.get_rng_state()
    make_surrogate("drawn", tmp_path / "a", settings=QUICK, progress=seen.append)
    assert torch.equal(before, torch.random.get_rng_state())
    first, second = ((f / FILES[0]).read_bytes() for f in (tmp_path / "a", pretrained))
    assert first == second
    assert [record.step for record in seen] == [20, 30]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(FILES)


def test_json_of_the_command_is_of_its_schema(
    bank: Dataset, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_dataset", lambda name, path: bank)
    words = ("--dataset", "drawn", "--out", tmp_path, "--steps", 2)
    (said,) = valid(cli, "pretrain", "surrogate-clip", *words)
    assert (said["model"], said["found"]["records"]) == (f"surrogate:{tmp_path}", 80)


def test_twice_the_time_holds_more_steps(bank: Dataset) -> None:
    rest = (bank, validation_records(bank), SurrogateShape(BankShape(12)))
    settings = SurrogateSettings()
    assert steps_within(10.0, *rest, settings) > steps_within(0.1, *rest, settings) > 0
    with pytest.raises(ConfigError, match="more than 0"):
        steps_within(0.0, *rest, settings)


def test_accuracy_is_measured_on_the_test_part(bank: Dataset) -> None:
    public = validation_records(bank)
    assert bank.split is not None
    unseen = unseen_records(bank, public)
    assert (bank.split[unseen] == TEST_SPLIT).all()
    rest = unseen_records(replace(bank, split=None), public)
    assert set(rest.tolist()).isdisjoint(public.indices.tolist())
    assert len(rest) == 160
