"""Picture readers: pictures made into tokens by a model's own processor and tower."""

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import Pictures, as_rgb

LAYOUT = "text_replacement_offsets"  # what processors call it
_BITS = 16  # for each side of a grid


def pack_grid(time: int, height: int, width: int) -> int:
    """Return a picture's patches in time, height and width as one number."""
    return (time << 2 * _BITS) | (height << _BITS) | width


def unpack_grids(numbers: Int[Tensor, " n"]) -> Int[Tensor, "n 3"]:
    """Return what :func:`pack_grid` packed."""
    mask = (1 << _BITS) - 1
    sides = (numbers >> 2 * _BITS, (numbers >> _BITS) & mask, numbers & mask)
    return torch.stack(sides, dim=-1)


@dataclass(frozen=True)
class PictureLayout:
    """How a picture of one size stands in a text.

    Attributes:
        text: What the processor writes for it: places, and marks around them.
        number: Its patches in time, height and width, packed, for models whose
            positions follow these; 0 for others.
    """

    text: str
    number: int


@dataclass(frozen=True)
class PictureFormat:
    """How a model's image tower hands tokens on to its language model.

    Attributes:
        output: The class in which it returns them.
        listed: Whether as one tensor for each picture, and not as one for all.
        width: Numbers that are embedded of a token. What deeper layers add (deepstack)
            is as wide, and stands behind it.
    """

    output: type
    listed: bool
    width: int

    def restored(self, tokens: Float[Tensor, "n token_width"]) -> Any:
        """Return several pictures' tokens, without padding, as the model takes them."""
        first, *deeper = tokens.split(self.width, dim=-1)
        pooled = [first] if self.listed else first[None]
        levels = {"deepstack_features": [[one] for one in deeper]} if deeper else {}
        return self.output(pooler_output=pooled, **levels)


class PictureReader:
    """What a model's processor and image tower make of pictures.

    Layouts are asked for once for each size: no processor looks at the colours for them.

    Attributes:
        format: How tokens are handed on.
        example: What the processor makes of one picture and its mark.
    """

    def __init__(self, model: Any, processor: Any, example: Mapping[str, Any]) -> None:
        self._processor = processor
        self._encoder = model.base_model.get_image_features
        self._device, self._dtype = model.device, model.dtype
        self._layouts: dict[tuple[int, int], PictureLayout] = {}
        self.example = example
        output = self._features(example)
        pooled = output.pooler_output
        self.format = PictureFormat(
            type(output), not isinstance(pooled, Tensor), pooled[0].shape[-1]
        )

    @torch.no_grad()
    def encode(self, pictures: Pictures) -> Float[Tensor, "n parts token_width"]:
        """Return the tokens of pictures of one size.

        Raises:
            ConfigError: Another number of channels, or floats beyond 0 to 1.
        """
        in_bytes = (as_rgb(pictures) * 255).round().to(torch.uint8)
        rows = in_bytes.permute(0, 2, 3, 1).cpu().numpy()
        output = self._features(
            processed(self._processor, [Image.fromarray(row) for row in rows])
        )
        deeper = getattr(output, "deepstack_features", None) or ()
        levels = [
            _by_picture(part, len(rows)) for part in (output.pooler_output, *deeper)
        ]
        return torch.cat(levels, dim=-1).float()

    def layout(self, height: int, width: int) -> PictureLayout:
        """Return how a picture of that size stands in a text."""
        size = (height, width)
        if size not in self._layouts:
            made = processed(self._processor, [black_picture(*size)])
            text = made[LAYOUT][0][0]["replacement"]
            grid = made.get("image_grid_thw")
            number = 0 if grid is None else pack_grid(*grid[0].tolist())
            self._layouts[size] = PictureLayout(text, number)
        return self._layouts[size]

    def _features(self, made: Mapping[str, Any]) -> Any:
        takes = inspect.signature(self._encoder).parameters
        given = {n: self._moved(t) for n, t in made.items() if n in takes}
        with torch.no_grad():
            return self._encoder(**given, return_dict=True)

    def _moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor where the model is, and in its precision if it has one."""
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._device, dtype)


def black_picture(height: int, width: int) -> Image.Image:
    """Return a picture that says nothing."""
    return Image.fromarray(np.zeros((height, width, 3), dtype=np.uint8))


def processed(processor: Any, pictures: list[Image.Image]) -> Mapping[str, Any]:
    """Return what a processor makes of pictures of one size and a mark for each.

    Raises:
        ConfigError: It takes none of that size: one much longer than wide, say.
    """
    try:
        with warnings.catch_warnings():
            # PaliGemma's makes arrays of tensors as NumPy 1 did.
            warnings.simplefilter("ignore", DeprecationWarning)
            made: Mapping[str, Any] = processor(
                images=[[picture] for picture in pictures],
                text=[processor.image_token] * len(pictures),
                return_tensors="pt",
                return_text_replacement_offsets=True,
            )
    except ValueError as error:
        width, height = pictures[0].size
        raise ConfigError(
            f"The model's processor takes no picture of {height} x {width} pixels: "
            f"{str(error).rstrip('.')}. Crop it, or leave the record out."
        ) from None
    return made


def _by_picture(features: Any, pictures: int) -> Float[Tensor, "n parts width"]:
    """Stack the features of pictures of one size, which have as many parts each."""
    whole = features if isinstance(features, Tensor) else torch.cat(list(features))
    return whole.reshape(pictures, -1, whole.shape[-1])
