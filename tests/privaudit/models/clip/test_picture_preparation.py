from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.hugging_face import import_open_clip

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def smooth_picture(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / 7 + c) + np.cos(columns / 9 - c) for c in range(3)]
    return (np.stack(waves, axis=-1) * 50 + 127).astype(np.uint8)


@pytest.mark.parametrize("fit", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("shape", [(60, 90), (33, 20), (32, 32)])
def test_it_agrees_with_open_clips_own_preparation(
    fit: Literal["shortest", "squash", "longest"], shape: tuple[int, int]
) -> None:
    transform: Any = import_open_clip().image_transform(
        32, is_train=False, mean=MEAN, std=STD, resize_mode=fit
    )
    picture = smooth_picture(*shape)
    expected = transform(Image.fromarray(picture))
    prepare = PicturePreparation(32, MEAN, STD, fit=fit)
    found = prepare(torch.from_numpy(picture).permute(2, 0, 1)[None])[0]
    grey_level = 1 / 255 / min(STD)
    assert (found - expected).abs().max() < 1.5 * grey_level


def test_bytes_and_floats_are_the_same_picture() -> None:
    prepare = PicturePreparation(16, MEAN, STD)
    picture = torch.from_numpy(smooth_picture(16, 20)).permute(2, 0, 1)[None]
    torch.testing.assert_close(prepare(picture), prepare(picture / 255))


def test_grey_pictures_become_three_equal_channels() -> None:
    prepared = PicturePreparation(4, (0.5,) * 3, (0.5,) * 3)(torch.ones(2, 1, 4, 4))
    assert torch.equal(prepared, torch.ones(2, 3, 4, 4))


def test_no_pictures_are_no_error() -> None:
    prepared = PicturePreparation(4, MEAN, STD)(torch.zeros(0, 3, 4, 4))
    assert prepared.shape == (0, 3, 4, 4)


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (torch.full((1, 3, 4, 4), 16.0), "between 16 and 16"),
        (torch.full((1, 3, 4, 4), torch.nan), "between nan and nan"),
        (torch.zeros(1, 4, 4, 3), "these have 4"),
    ],
)
def test_pictures_of_another_scale_or_layout_are_refused(
    pictures: torch.Tensor, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        PicturePreparation(4, MEAN, STD)(pictures)
