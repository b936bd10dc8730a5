"""What the image side reads in pretraining, varied at random."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, FeatureBank, Images
from privaudit.models.clip.picture_preparation import PicturePreparation, as_rgb
from privaudit_tools.surrogate_clip.public_split import PublicRecords
from privaudit_tools.surrogate_clip.storage import (
    BankShape,
    SurrogateShape,
    VariationSettings,
    preparation,
)


@runtime_checkable
class PublicImages(Protocol):
    """The public records' image side."""

    def __len__(self) -> int:
        """How many."""
        ...

    def draw(self, rows: Int[Tensor, " n"], generator: torch.Generator) -> Tensor:
        """Return records as the image tower takes them, varied."""
        ...


class PublicBank:
    """Embeddings of the public records, of which some numbers drop out.

    Attributes:
        mean: Of each number.
        deviation: Of each number; 1 where it is always the same.
    """

    def __init__(
        self, bank: FeatureBank, indices: Int[Tensor, " n"], settings: VariationSettings
    ) -> None:
        self._embeddings, self._settings = bank.embeddings[indices], settings
        self.mean = self._embeddings.mean(0)
        deviation = self._embeddings.std(0, correction=0)
        self.deviation = torch.where(deviation > 0, deviation, 1.0)

    def __len__(self) -> int:
        return len(self._embeddings)

    def draw(
        self, rows: Int[Tensor, " n"], generator: torch.Generator
    ) -> Float[Tensor, "n width"]:
        """Return embeddings, with dropout around the mean."""
        embeddings, dropout = self._embeddings[rows], self._settings.dropout
        mask = torch.rand(embeddings.shape, generator=generator) >= dropout
        return self.mean + mask * (embeddings - self.mean) / (1 - dropout)


class PublicPictures:
    """Pictures of the public records: cropped, shifted and mirrored.

    They are read once and kept as bytes at the tower's size.
    """

    def __init__(
        self,
        images: Images,
        indices: Int[Tensor, " n"],
        prepare: PicturePreparation,
        settings: VariationSettings,
    ) -> None:
        self._settings = settings
        bytes_only = PicturePreparation(
            prepare.size, (0.0,) * 3, (1 / 255,) * 3, prepare.interpolation, prepare.fit
        )
        pixels = [bytes_only(as_rgb(images[i][None])) for i in indices.tolist()]
        self._pixels = torch.cat(pixels).round().to(torch.uint8)
        self._mean = torch.tensor(prepare.mean).view(3, 1, 1)
        self._deviation = torch.tensor(prepare.std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._pixels)

    def draw(
        self, rows: Int[Tensor, " n"], generator: torch.Generator
    ) -> Float[Tensor, "n 3 size size"]:
        """Return pictures, varied and normalised."""
        pixels = self._pixels[rows] / 255
        grid = affine_grid(
            self._views(len(rows), pixels.shape[-1], generator),
            list(pixels.shape),
            align_corners=False,
        )
        varied = grid_sample(
            pixels, grid, padding_mode="reflection", align_corners=False
        )
        return (varied - self._mean) / self._deviation

    def _views(
        self, count: int, size: int, generator: torch.Generator
    ) -> Float[Tensor, "count 2 3"]:
        """Draw maps from places in a view to places in its picture, both -1 to 1."""
        smallest, shift = self._settings.smallest_crop, self._settings.shift
        random = torch.rand(4, count, generator=generator)
        scale = smallest + (1 - smallest) * random[0]
        reach = 2 * shift + 1 - scale
        moved = (2 * random[1:3] - 1) * reach
        moved = (moved * size / 2).round() * 2 / size  # whole pixels: no blur
        mirror = torch.where(random[3] < 0.5, -1.0, 1.0)
        zero = torch.zeros(count)
        across = torch.stack([scale * mirror, zero, moved[0]], dim=1)
        down = torch.stack([zero, scale, moved[1]], dim=1)
        return torch.stack([across, down], dim=1)


def public_images(
    dataset: Dataset,
    public: PublicRecords,
    shape: SurrogateShape,
    variation: VariationSettings,
) -> PublicImages:
    """Return the public records' image side, as the shape reads it.

    Raises:
        ConfigError: The data set holds pictures and the shape reads a bank, or the
            other way round, or a bank of another width.
    """
    images, wanted = dataset.pictures, shape.image
    if isinstance(images, FeatureBank):
        width = images.embeddings.shape[1]
        if not isinstance(wanted, BankShape) or wanted.width != width:
            raise ConfigError(
                f"This data set is a bank of embeddings of {width} numbers, and the "
                f"surrogate reads {wanted}. Give it BankShape(width={width})."
            )
        return PublicBank(images, public.indices, variation)
    if isinstance(wanted, BankShape):
        raise ConfigError(
            f"This data set holds pictures, and the surrogate reads {wanted}. Give it "
            "a ResNetShape."
        )
    return PublicPictures(images, public.indices, preparation(wanted), variation)
