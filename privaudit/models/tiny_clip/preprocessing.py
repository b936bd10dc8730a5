"""Picture preparation of tiny-clip."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from privaudit.models.tiny_clip.architecture import IMAGE_SIZE, PICTURE_SIZE

MEAN, DEVIATION = 0.5, 0.25


def preprocess_batch(
    pictures: Float[Tensor, "n h w"] | Float[Tensor, "n 3 h w"],
) -> Float[Tensor, "n 3 size size"]:
    """Resize to 32x32, double, normalise; pictures that are not square are stretched.

    They are grey or RGB, with values in [0, 1]: scikit-learn's digits divided by 16.
    """
    if pictures.ndim == 3:
        pictures = pictures[:, None].expand(-1, 3, -1, -1)
    small = _resize(pictures.float(), PICTURE_SIZE)
    return (_resize(small, IMAGE_SIZE) - MEAN) / DEVIATION


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
