"""The digits that scikit-learn ships, read without importing it."""

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from privaudit.core.errors import MissingFileError
from privaudit.datasets.dataset import PixelImages
from privaudit.datasets.images import digits as module


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
