"""Random crops of pictures, mirrored by a coin, as prompt learners train on them."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.core.seeds import Seeds, Stream
from privaudit.datasets.dataset import Dataset, FeatureBank, Images, Texts
from privaudit.datasets.records import Records
from privaudit.models.clip.picture_preparation import as_rgb
from privaudit.models.frozen_model import FrozenModel

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a crop: the source's, and CoOp's
TRIES = 10
CROPS = Seeds(0).child("views")


@dataclass(frozen=True)
class RandomView:
    """Pictures, each seen through one random crop; every second one is mirrored.

    Crops are the same in all runs, so that their features are computed once: what a
    run's seed decides is which view a step takes.

    Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6, with
    the limits of torchvision's RandomResizedCrop: an area of 8 to 100 %, sides from 3:4
    to 4:3, a square in the end.

    Attributes:
        number: Which of the views, from 0 on.
        size: Side of the square that comes out, in pixels.
    """

    images: Images
    number: int
    size: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Float[Tensor, "3 size size"]:
        """Return one picture's view, in RGB."""
        stream = CROPS.stream("crop", round=self.number, client=str(index))
        picture = as_rgb(self.images[index].unsqueeze(0))
        height, width = picture.shape[-2:]
        top, left, height, width = crop_of(height, width, stream)
        part = picture[..., top : top + height, left : left + width]
        square = (self.size, self.size)
        view = functional.interpolate(part, size=square, mode="bicubic", antialias=True)
        if stream.coin(0.5):
            view = view.flip(-1)
        return view[0].clamp(0, 1)

    @property
    def digest(self) -> str:
        """A SHA-256 that changes with any picture and with the view."""
        text = f"{self.images.digest} view {self.number} of {self.size} pixels"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def contents(self) -> Sequence[bytes]:
        """The SHA-256 of each picture as it came."""
        return self.images.contents


def crop_of(height: int, width: int, stream: Stream) -> tuple[int, int, int, int]:
    """Draw a crop: top, left, height and width, in pixels.

    The area is uniform, the logarithm of the sides' ratio too; what does not fit is
    drawn again, and the whole picture is taken in the end.
    """
    for _ in range(TRIES):
        area, ratio, down, right = stream.uniform(4).tolist()
        share = AREA[0] + area * (AREA[1] - AREA[0])
        low, high = map(math.log, RATIO)
        sides = math.exp(low + ratio * (high - low))
        across = round(math.sqrt(height * width * share * sides))
        along = round(math.sqrt(height * width * share / sides))
        if 0 < across <= width and 0 < along <= height:
            top, left = down * (height - along + 1), right * (width - across + 1)
            return int(top), int(left), along, across
    return 0, 0, height, width


def with_views(
    model: FrozenModel, dataset: Dataset, records: Records, views: int
) -> Records:
    """Return the records with features of so many random views of each picture.

    They are in memory: 4 bytes for each number of each view's feature.

    Raises:
        ConfigError: The model or the method reads something else than one feature of
            each picture.
    """
    images, size = dataset.images, getattr(model, "image_size", None)
    by_feature = records.tokens is None and records.words is None
    if isinstance(images, FeatureBank | Texts) or not size or not by_feature:
        raise ConfigError(
            f"{views} views of each picture were requested. They are for methods that "
            "learn from one feature of each picture, such as promptfl on a CLIP, and "
            "this one reads embeddings, texts or parts of pictures. Leave --views out, or take 1."
        )
    features = [
        model.read(replace(dataset, images=RandomView(images, number, size))).features
        for number in range(views)
    ]
    return replace(records, views=torch.stack(features, dim=1).cpu())
