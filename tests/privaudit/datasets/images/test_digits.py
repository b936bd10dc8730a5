"""Digits: those that scikit-learn ships, read without importing it, and drawn ones."""

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from privaudit.cli.list import names_of
from privaudit.core.errors import MissingFileError
from privaudit.datasets.dataset import Dataset, PixelImages
from privaudit.datasets.images import digits as module
from privaudit.datasets.images.digits import digits, drawn_digits
from privaudit.models.feature_cache import encoded_features
from privaudit.statistics.roc import auroc
from tests.loaded_models import load_clip


def test_digits_are_those_that_scikit_learn_reads() -> None:
    found, theirs = module.digits(), load_digits()
    assert isinstance(found.images, PixelImages)
    pixels = torch.from_numpy(theirs.images).to(torch.float32).unsqueeze(1) / 16
    assert torch.equal(found.images.pixels, pixels)
    assert torch.equal(found.labels, torch.from_numpy(theirs.target).long())


@pytest.mark.parametrize("is_there", [True, False])
def test_an_installation_without_the_file_is_named(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        submodule_search_locations = (str(tmp_path),)

    found = Found() if is_there else None
    monkeypatch.setattr(module, "find_spec", lambda name: found)
    with pytest.raises(
        MissingFileError, match=r"digits\.csv\.gz.*Install scikit-learn"
    ):
        module.digits()


def pixels(dataset: Dataset) -> torch.Tensor:
    assert isinstance(dataset.images, PixelImages)
    return dataset.images.pixels


def test_they_have_the_form_of_digits() -> None:
    drawn, real = drawn_digits(), digits()
    assert drawn.class_names == real.class_names
    assert drawn.template == real.template
    assert pixels(drawn).shape == (1000, 1, 8, 8)
    assert torch.bincount(drawn.labels).tolist() == [100] * 10
    levels = pixels(drawn) * 16
    assert torch.equal(levels, levels.round())
    assert pixels(drawn).min().item() == 0
    assert pixels(drawn).max().item() == 1


def test_they_are_the_same_at_every_load_and_none_is_blank_or_twice() -> None:
    drawn = drawn_digits()
    assert drawn.hash == drawn_digits().hash
    flat = pixels(drawn).flatten(1)
    assert flat.sum(dim=1).min() > 2
    assert len(flat.unique(dim=0)) > 990
    real = pixels(digits()).flatten(1)
    assert not (flat[:, None] == real[None]).all(dim=2).any()


def test_the_untrained_model_reads_them_as_well_as_is_said() -> None:
    model, right, likely = load_clip(), [], []
    for dataset in (digits(), drawn_digits()):
        features = encoded_features(model, dataset.pictures, range(len(dataset)))
        texts = model.template_features(dataset.class_names, dataset.template)
        scores = model.logit_scale * features @ texts.T
        right.append((scores.argmax(dim=1) == dataset.labels).float().mean().item())
        each = torch.arange(len(dataset)), dataset.labels
        likely.append(scores.log_softmax(dim=1)[each].numpy())
    assert right == pytest.approx([0.84, 0.56], abs=0.02)
    real, drawn = likely
    assert auroc(real, drawn).value == pytest.approx(0.72, abs=0.01)


def test_the_list_of_data_sets_names_them() -> None:
    assert "drawn-digits" in [line[0] for line in names_of("datasets")]
