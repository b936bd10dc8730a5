"""The weights that come with the package."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from privaudit.models import tiny_clip
from privaudit.models.tiny_clip.architecture import IMAGE_SIZE, configuration
from privaudit.models.tiny_clip.loading import DEFAULT_TEMPLATE, TinyClip, load
from privaudit.models.tiny_clip.preprocessing import preprocess_batch
from privaudit_tools.pretraining.tiny_clip_validation import (
    TEMPLATES,
    digit_features,
    zero_shot_accuracy,
)

FOLDER = Path(tiny_clip.__file__).parent
# Measured once, with the finished weights: see docs/decisions/0005-embedded-model.md.
ZERO_SHOT_ON_DIGITS = 0.845


@pytest.fixture(scope="module")
def loaded() -> TinyClip:
    return load()


@pytest.fixture(scope="module")
def description() -> dict[str, object]:
    return json.loads((FOLDER / "tiny-clip.json").read_text())


def test_the_weights_are_small_and_those_of_the_description(
    description: dict[str, object],
) -> None:
    content = (FOLDER / "tiny-clip.safetensors").read_bytes()
    assert len(content) <= 4_000_000
    assert hashlib.sha256(content).hexdigest() == description["sha256"]
    assert description["configuration"] == configuration()


def test_the_log_ends_where_the_description_does(
    description: dict[str, object],
) -> None:
    last = (FOLDER / "tiny-clip.jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == description["last"]


def test_the_default_template_is_the_best_on_drawn_pictures(
    description: dict[str, dict[str, dict[str, float]]],
) -> None:
    accuracies = description["last"]["accuracies"]
    best = max(TEMPLATES, key=lambda template: accuracies[f"{template} mean"])
    assert best == DEFAULT_TEMPLATE


def test_it_loads_frozen(loaded: TinyClip) -> None:
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert 1 <= loaded.model.logit_scale.exp().item() <= 100.01


def test_handwritten_digits_are_recognised_as_reported(loaded: TinyClip) -> None:
    pictures, labels = load_digits(return_X_y=True)
    grey = torch.from_numpy(pictures.reshape(-1, 8, 8) / 16)
    with torch.no_grad():
        features = loaded.model.encode_image(preprocess_batch(grey))
    texts = digit_features(loaded.model, DEFAULT_TEMPLATE)
    accuracy = zero_shot_accuracy(features, texts, torch.from_numpy(labels))
    assert accuracy >= ZERO_SHOT_ON_DIGITS - 0.02


def test_a_plain_picture_of_any_size_stays_plain() -> None:
    prepared = preprocess_batch(torch.full((2, 3, 50, 40), 0.75))
    assert prepared.shape == (2, 3, IMAGE_SIZE, IMAGE_SIZE)
    torch.testing.assert_close(prepared, torch.ones_like(prepared))
