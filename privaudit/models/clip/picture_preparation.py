"""Picture preparation: pictures of any size, resized, cropped and normalised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, UInt8

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, functional, torch

Pictures = Float[Tensor, "n channels h w"] | UInt8[Tensor, "n channels h w"]


@dataclass(frozen=True)
class PicturePreparation:
    """Resize, crop and normalise, without any randomness.

    It does in floating point what open_clip's own preparation does with 8-bit
    pictures, so the two agree to about one of 255 grey levels.

    Attributes:
        size: Side of the square that comes out, in pixels.
        mean: Per channel, on a scale of 0 to 1.
        std: Per channel, on that scale.
        interpolation: How pictures are resized, always with antialiasing.
        fit: "shortest" resizes the shorter side and crops the centre, "longest"
            resizes the longer side and pads, "squash" ignores the proportions.
        fill: Grey level of the padding, 0 to 255.
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    fit: Literal["shortest", "longest", "squash"] = "shortest"
    fill: int = 0

    def __call__(self, pictures: Pictures) -> Float[Tensor, "n 3 size size"]:
        """Prepare pictures of one size, grey or RGB, bytes or floats from 0 to 1.

        Raises:
            ConfigError: Another number of channels, or floats beyond 0 to 1.
        """
        resized = self._crop(self._resize(as_rgb(pictures))).clamp(0, 1)
        mean, std = (resized.new_tensor(x).view(3, 1, 1) for x in (self.mean, self.std))
        return (resized - mean) / std

    def _resize(self, pictures: Tensor) -> Tensor:
        height, width = pictures.shape[-2:]
        if self.fit == "squash":
            target = (self.size, self.size)
        else:
            side = min(height, width) if self.fit == "shortest" else max(height, width)
            # Exact integers, as torchvision cuts the longer side down.
            down, right = (max(1, self.size * one // side) for one in (height, width))
            target = (down, right)
        if target == (height, width):
            return pictures
        return functional.interpolate(
            pictures, size=target, mode=self.interpolation, antialias=True
        )

    def _crop(self, pictures: Tensor) -> Tensor:
        """Cut or pad both sides around the centre; negative padding cuts."""
        down, right = (self.size - side for side in pictures.shape[-2:])
        edges = (right // 2, right - right // 2, down // 2, down - down // 2)
        return functional.pad(pictures, edges, value=self.fill / 255)


@dataclass(frozen=True)
class ProcessorPreparation:
    """Prepares pictures as the model's own image processor does."""

    processor: Any

    def __call__(self, pictures: Pictures) -> Float[Tensor, "n 3 height width"]:
        """Prepare a batch of pictures of one size.

        Raises:
            ConfigError: Another number of channels, or floats beyond 0 to 1.
        """
        # In floats, resizing would overshoot black and white; in bytes it cannot.
        in_bytes = (as_rgb(pictures) * 255).round().to(torch.uint8)
        made = self.processor(
            images=list(in_bytes),
            return_tensors="pt",
            input_data_format="channels_first",
        )
        return made["pixel_values"].float()

    def example(self, size: int) -> Float[Tensor, "1 3 size size"]:
        """Return a black picture, prepared.

        Raises:
            ConfigError: It is not of the size that the image tower takes.
        """
        made = self(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        if tuple(made.shape[2:]) != (size, size):
            raise ConfigError(
                f"The image processor makes pictures of {tuple(made.shape[2:])} "
                f"pixels, and the image tower takes {size} x {size}. Mend "
                "preprocessor_config.json."
            )
        return made


def check_pixels(pictures: Pictures) -> None:
    """Refuse pictures without any pixel."""
    if 0 in pictures.shape[1:]:
        raise ConfigError(
            f"A picture of {list(pictures.shape[1:])} (channels, height, width) "
            "has no pixels. Give each record its picture, or leave it out."
        )


def as_rgb(pictures: Pictures) -> Float[Tensor, "n 3 h w"]:
    """Return RGB floats from 0 to 1.

    Raises:
        ConfigError: Another number of channels, or floats beyond 0 to 1.
    """
    channels = pictures.shape[1]
    if channels not in (1, 3):
        raise ConfigError(
            f"Pictures have 1 or 3 channels [n, channels, height, width], and these "
            f"have {channels}: {list(pictures.shape)}. Reorder or convert them."
        )
    if pictures.dtype == torch.uint8:
        pictures = pictures / 255
    elif len(pictures) and not (pictures.min() >= 0 and pictures.max() <= 1):
        raise ConfigError(
            f"Pictures in floating point lie between 0 and 1, and these between "
            f"{pictures.min():g} and {pictures.max():g}. Rescale them."
        )
    return pictures.expand(-1, 3, -1, -1)
