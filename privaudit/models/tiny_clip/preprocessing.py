"""From pictures of any size to what the image tower wants."""

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from privaudit.models.tiny_clip.architecture import IMAGE_SIZE, PICTURE_SIZE

MEAN, DEVIATION = 0.5, 0.25


def preprocess_batch(
    pictures: Float[Tensor, "n h w"] | Float[Tensor, "n 3 h w"],
) -> Float[Tensor, "n 3 size size"]:
    """Resize to 32x32, double, normalise.

    Pictures that are not square are stretched.

    Args:
        pictures: Grey or RGB, values in [0, 1], so scikit-learn's digits divided
            by 16.
    """
    if pictures.ndim == 3:
        pictures = pictures[:, None].expand(-1, 3, -1, -1)
    small = _resize(pictures.float(), PICTURE_SIZE)
    return (_resize(small, IMAGE_SIZE) - MEAN) / DEVIATION


def preprocess(
    picture: Image.Image | np.ndarray,
) -> Float[Tensor, "3 size size"]:
    """Prepare one picture.

    Args:
        picture: PIL image, or an array [h, w] or [h, w, 3]: uint8, or floats in [0, 1].
    """
    if isinstance(picture, Image.Image):
        picture = np.asarray(picture.convert("RGB"))
    values = torch.from_numpy(np.array(picture))
    values = values / 255 if values.dtype == torch.uint8 else values.float()
    if values.ndim == 3:
        values = values.movedim(-1, 0)
    return preprocess_batch(values[None])[0]


def _resize(
    pictures: Float[Tensor, "n c h w"], size: int
) -> Float[Tensor, "n c size size"]:
    if pictures.shape[-2:] == (size, size):
        return pictures
    shrinks = max(pictures.shape[-2:]) > size
    return interpolate(
        pictures,
        size=(size, size),
        mode="bilinear",
        align_corners=False,
        antialias=shrinks,
    )
