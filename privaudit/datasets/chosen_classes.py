"""A data set's records of some of its classes, as papers take ten of DomainNet's 345."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import ConfigError, DatasetError, nearest
from privaudit.datasets.dataset import (
    Dataset,
    FeatureBank,
    Images,
    PixelImages,
    Texts,
)
from privaudit.datasets.images.class_folders import readable
from privaudit.datasets.images.picture_files import EncodedPictures

KNOWN_CLASSES: Mapping[str, tuple[str, ...]] = {
    # Li et al., "FedBN", ICLR 2021: the ten that are most frequent over the domains.
    # FedOTP, FedPGP and pFedMoAP take the same.
    "domainnet-10": (
        "bird", "feather", "headphones", "ice cream", "teapot", "tiger", "whale",
        "windmill", "wine glass", "zebra",
    ),
    # Gong et al., "Geodesic flow kernel", CVPR 2012: those that Office and Caltech-256
    # have in common.
    "office-caltech-10": (
        "back pack", "bike", "calculator", "headphones", "keyboard", "laptop computer",
        "monitor", "mouse", "mug", "projector",
    ),
}  # fmt: skip


def named_classes(given: str) -> str:
    """Return class names with commas between them, of a choice as users give it.

    Args:
        given: Such names; or a name of ``KNOWN_CLASSES``; or a .txt with one a line.
    """
    if given in KNOWN_CLASSES:
        return ",".join(KNOWN_CLASSES[given])
    if given.endswith(".txt"):
        try:
            lines = read_bytes(Path(given).expanduser()).decode().splitlines()
        except UnicodeDecodeError:
            raise ConfigError(f"{given} lists no classes: it is no text.") from None
        given = ",".join(line for line in lines if line.strip())
    return ",".join(readable(name) for name in given.split(","))


def only_classes(dataset: Dataset, names: str) -> Dataset:
    """Return the records of some classes, in the data set's own order.

    Raises:
        DatasetError: There are fewer than two, one is there twice, or the data set has
            none of that name.
    """
    places = {_plain(name): place for place, name in enumerate(dataset.class_names)}
    wanted = [_plain(name) for name in names.split(",")]
    if len(wanted) < 2 or len(set(wanted)) < len(wanted):
        raise DatasetError(
            f"The classes {names!r} were chosen, and two or more different ones are "
            "needed. Write them with commas between."
        )
    unknown = [name for name in wanted if name not in places]
    if unknown:
        raise DatasetError(
            f"{len(unknown)} of the {len(wanted)} chosen classes are none of the data "
            f"set's {len(places)}, such as {unknown[0]!r}."
            f"{nearest(unknown[0], places)} It has {', '.join(list(places)[:6])} and so "
            "on."
        )
    chosen = torch.tensor(sorted(places[name] for name in wanted))
    kept = torch.isin(dataset.labels, chosen).nonzero().flatten()
    return _picked(dataset, kept, chosen)


def _picked(
    dataset: Dataset, kept: Int[Tensor, " n"], chosen: Int[Tensor, " classes"]
) -> Dataset:
    split, domains, groups = dataset.split, dataset.domains, dataset.groups
    dialogues = dataset.dialogues
    return replace(
        dataset,
        images=_pictures(dataset.images, kept),
        labels=torch.searchsorted(chosen, dataset.labels[kept]),
        class_names=tuple(dataset.class_names[place] for place in chosen.tolist()),
        dialogues=tuple(dialogues[n] for n in kept.tolist()) if dialogues else (),
        split=None if split is None else split[kept],
        domains=None if domains is None else domains[kept],
        groups=None if groups is None else groups[kept],
    )


def _pictures(
    images: Images | FeatureBank | Texts, kept: Int[Tensor, " n"]
) -> Images | FeatureBank | Texts:
    if isinstance(images, FeatureBank):
        return FeatureBank(images.embeddings[kept])
    if isinstance(images, PixelImages):
        return PixelImages(images.pixels[kept])
    if isinstance(images, Texts):
        return Texts(tuple(images.texts[place] for place in kept.tolist()))
    if isinstance(images, EncodedPictures):
        return ChosenPictures(images, tuple(kept.tolist()))
    raise DatasetError(
        "Classes were chosen, of a data set that hands out its pictures in a form of "
        "its own. Leave --classes out."
    )


@dataclass(frozen=True)
class ChosenPictures(EncodedPictures):
    """Some of the pictures that files hold, by their places among all, in order."""

    images: EncodedPictures
    places: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)

    def content(self, index: int) -> bytes:
        """Return a picture as its file holds it."""
        return self.images.content(self.places[index])

    def name(self, index: int) -> str:
        """Return what an error calls a picture."""
        return self.images.name(self.places[index])


def _plain(name: str) -> str:
    return readable(name).casefold()
