import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from privaudit.core.errors import ConfigError, MissingFileError, TrainingError
from privaudit.models.pretraining.drawing import DrawingSettings
from privaudit.models.pretraining.tiny_clip import (
    TinyClipSettings,
    contrastive_loss,
    pretrain,
)
from privaudit.models.pretraining.tiny_clip_validation import zero_shot_accuracy
from privaudit.models.tiny_clip.architecture import build_model, encode_text
from privaudit.models.tiny_clip.tokenizer import TinyTokenizer
from privaudit.models.tiny_clip.weights import TinyClipLogLine, load_weights

SMALL = TinyClipSettings(
    steps=3, batch=8, copies=1, validate=10, log_every=2, precision="float32"
)
FILES = ("tiny-clip.safetensors", "tiny-clip.json", "tiny-clip.jsonl")


@pytest.fixture(scope="module", autouse=True)
def few_marks() -> Iterator[None]:
    """Two fonts in place of twenty, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privaudit.models.tiny_clip.marks.FONTS", ("cmr10",))
        patch.setattr("privaudit.models.tiny_clip.marks.HELD_OUT_FONTS", ("cmss10",))
        yield


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, few_marks: None) -> Path:
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
    seen: list[TinyClipLogLine] = []
    last = pretrain(SMALL, tmp_path, seen.append)
    lines = (tmp_path / "tiny-clip.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]
    assert [record.step for record in seen] == [2, 3]
    assert seen[-1] == last
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    description = json.loads((tmp_path / "tiny-clip.json").read_text())
    assert description["settings"]["steps"] == 3
    assert description["last"]["step"] == 3
    assert (tmp_path / FILES[0]).read_bytes() == (once / FILES[0]).read_bytes()


def test_the_stored_weights_load_frozen(trained: Path) -> None:
    model = load_weights(trained)
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

    monkeypatch.setattr(
        "privaudit.models.pretraining.tiny_clip.contrastive_loss", broken
    )
    with pytest.raises(TrainingError, match="loss of step 1 is nan"):
        pretrain(SMALL, tmp_path)


@pytest.mark.parametrize("field", ["steps", "batch", "log_every"])
def test_a_setting_of_zero_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(TinyClipSettings).validate_python({field: 0})


def test_the_loss_of_perfect_logits_with_two_positives_is_log_2() -> None:
    matches = torch.block_diag(torch.ones(2, 2), torch.ones(1, 1)).bool()
    logits = torch.where(matches, 0.0, -1e4)
    expected = 2 / 3 * torch.tensor(2.0).log()
    torch.testing.assert_close(contrastive_loss(logits, matches), expected)


def test_with_one_positive_each_the_loss_is_that_of_clip() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    by_picture = torch.nn.functional.cross_entropy(logits, labels)
    by_caption = torch.nn.functional.cross_entropy(logits.T, labels)
    torch.testing.assert_close(
        contrastive_loss(logits, torch.eye(6, dtype=torch.bool)),
        (by_picture + by_caption) / 2,
    )


def test_cut_texts_have_the_features_of_whole_ones() -> None:
    model = build_model(3).eval()
    tokens = TinyTokenizer()(["five", "a photo of the digit nine.", "k"])
    torch.testing.assert_close(
        encode_text(model, tokens), model.encode_text(tokens), atol=1e-5, rtol=1e-5
    )


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = build_model(1), build_model(1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.token_embedding.weight, second.token_embedding.weight)


def test_accuracy_counts_the_nearest_text() -> None:
    texts = torch.eye(2)
    features = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0], [1.0, 0.5]])
    labels = torch.tensor([0, 1, 1, 0])
    assert zero_shot_accuracy(features, texts, labels) == 0.75


def test_settings_nest_what_is_drawn(tmp_path: Path) -> None:
    settings = TinyClipSettings(drawing=DrawingSettings(digits=1, letters=0))
    assert settings.drawing.digits == 1.0
