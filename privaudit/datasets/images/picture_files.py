"""Pictures in files, decoded one by one when they are needed, and in folders by attribute."""

import hashlib
import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Int, UInt8

from privaudit.core.errors import DatasetError, LimitError, MissingFileError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.limits import check_limit, most, variable_of
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.files.archives import (
    FolderStore,
    Store,
    Wanted,
    is_archive,
    is_picture,
    open_store,
    plain,
)

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF")  # no others are decoded


class EncodedPictures(ABC):
    """Pictures as files hold them, each decoded when it is asked for.

    Several threads may ask at once: Pillow decodes without holding back the others.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Return a picture as its file holds it."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return what an error calls a picture."""

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Return one picture in RGB, as it lies there: nothing is turned or scaled."""
        from PIL import Image

        content, name = io.BytesIO(self.content(index)), self.name(index)
        if Image.MAX_IMAGE_PIXELS is not None:  # Pillow's own bound comes before ours
            Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, most("pixels"))
        try:
            with Image.open(content, formats=FORMATS) as image:
                _refuse_large(image.size, name)
                _refuse_deep(image.mode)
                pixels = np.array(image.convert("RGB"))
        except LimitError:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise LimitError(
                f"{name} is larger than pictures may be: {error} If that is right, set "
                f"{variable_of('pixels')} to its pixels."
            ) from None
        except (  # what Pillow raises on a broken picture
            OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError,
            struct.error,
        ) as error:  # fmt: skip
            raise DatasetError(
                f"{name} is not a picture, or a broken one ({error}). Fix it, or take "
                "it out."
            ) from None
        return torch.from_numpy(pixels).permute(2, 0, 1)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over the files' content, in order; wherever they lie, the same."""
        return hashlib.sha256(b"".join(self.contents)).hexdigest()

    @cached_property
    def contents(self) -> Sequence[bytes]:
        """The SHA-256 of each file."""
        return [hashlib.sha256(self.content(n)).digest() for n in range(len(self))]


@dataclass(frozen=True)
class PictureFiles(EncodedPictures):
    """Pictures of a folder or an archive, each read when it is asked for.

    Attributes:
        names: Their files, in the order of the records.
    """

    store: Store
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def content(self, index: int) -> bytes:
        """Return a file's content."""
        return self.store.read(self.names[index])

    def name(self, index: int) -> str:
        """Return a file's name, and where it is."""
        return f"{self.names[index]} in {self.store.path}"


def _refuse_large(size: tuple[int, int], what: str) -> None:
    """Refuse what would take too much memory as pixels, or once it is resized."""
    shorter, longer = sorted(size)
    check_limit("pixels", shorter * longer, what)
    check_limit("proportion", longer // max(1, shorter), f"The longer side of {what}")


def _refuse_deep(mode: str) -> None:
    """Refuse grey levels beyond bytes: Pillow would make nearly all of them white."""
    if mode.startswith("I") or mode == "F":
        raise ValueError(
            f"its grey levels are {mode}, of more than 8 bits; write them as 8 bits, "
            "with the window that should be seen"
        )


def store_in(path: Path, wanted: Wanted = is_picture) -> Store:
    """Return the files of an archive, of a folder, or of the one archive in a folder.

    A folder that holds a folder is taken as it is.
    """
    if not path.is_dir() or any(_folders(path)):
        return open_store(path, wanted)
    archives = sorted(file for file in path.iterdir() if is_archive(file))
    if len(archives) > 1:
        raise DatasetError(
            f"{path} holds {len(archives)} archives: "
            f"{', '.join(file.name for file in archives[:5])}. Name one of them, or "
            "extract them."
        )
    return open_store(archives[0] if archives else path, wanted)


def pictures_of(folder: Path, names: Sequence[str]) -> PictureFiles:
    """Return the pictures whose files a list names, in its order.

    They may lie in the folder, in a folder in it, or in an archive in it, there behind
    any folders.
    """
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise DatasetError(f"{name!r} in {folder} leaves the folder. Fix the list.")
    names = [*map(plain, names)]
    for place in (folder, *_folders(folder)):
        folder_store = FolderStore(place)
        if names[0] in folder_store:
            return _all_there(folder_store, "", names)
    for file in sorted(filter(is_archive, folder.iterdir())):
        store = open_store(file)
        matches = [name for name in store.names if f"/{name}".endswith(f"/{names[0]}")]
        if matches:
            return _all_there(store, matches[0].removesuffix(names[0]), names)
    raise MissingFileError(
        f"{names[0]} is not in {folder}, in no folder in it, and in no archive. Put "
        "the pictures there."
    )


def _all_there(store: Store, prefix: str, names: Sequence[str]) -> PictureFiles:
    full = [prefix + name for name in names]
    gone = [name for name in full if name not in store]
    if gone:
        raise MissingFileError(
            f"{len(gone)} of {len(full)} pictures are not in {store.path}, such as "
            f"{gone[0]}. Put them there, or take them out of the list."
        )
    return PictureFiles(store, full)


def _folders(path: Path) -> list[Path]:
    return sorted(
        one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")
    )


PARTS = {"train": TRAIN, "val": VALIDATION, "test": TEST_SPLIT}
SPLITS = {
    **PARTS, "training": TRAIN,
    "valid": VALIDATION, "validation": VALIDATION, "testing": TEST_SPLIT,
}  # fmt: skip

Levels = list[tuple[str, ...]]


def levels_of(store: Store, wanted: int) -> Levels:
    """Return each picture's folders and name, without what is in front for all.

    Each needs ``wanted`` folders; more in front are dropped if they are the same for all
    pictures.
    """
    if isinstance(store, FolderStore) and (empty := store.empty_folders()):
        raise DatasetError(
            f"The folder {empty[0]} in {store.path} holds no picture. Fill it, or "
            "remove it."
        )
    names = store.names
    levels = [tuple(name.split("/")) for name in names]
    if not levels:
        raise DatasetError(f"There are no pictures in {store.path}. Put some there.")
    while min(map(len, levels)) > wanted + 1 and len({x[0] for x in levels}) == 1:
        levels = [parts[1:] for parts in levels]
    for parts, name in zip(levels, names, strict=True):
        if len(parts) <= wanted:
            raise DatasetError(
                f"{name} in {store.path} lies in {len(parts) - 1} folders of its own, "
                f"and {wanted} are needed to tell its kind. Put it there, or remove it."
            )
    return levels


def take_split(levels: Levels) -> tuple[Int[Tensor, " n"] | None, Levels]:
    """Take a first level of train, val and test off, if that is what it is.

    Returns:
        The split of each picture, None without such a level; and the other levels.
    """
    tops = {parts[0].lower() for parts in levels}
    if not tops <= SPLITS.keys() or min(map(len, levels)) < 3:
        return None, levels
    split = torch.tensor([SPLITS[parts[0].lower()] for parts in levels])
    return split, [parts[1:] for parts in levels]


def part_of(word: str, where: str) -> int:
    """Return the part of a data set that a word such as "Validation" means."""
    if word.lower() not in SPLITS:
        raise DatasetError(
            f"{where} is of the split {word.lower()!r}. Use train, val or test."
        )
    return SPLITS[word.lower()]


def number(
    folders: Sequence[str], order: Sequence[str] = ()
) -> tuple[Int[Tensor, " n"], tuple[str, ...]]:
    """Return each folder's number, by default in the alphabet's order, and the names."""
    raw = order or sorted(set(folders))
    index = {name: place for place, name in enumerate(raw)}
    labels = torch.tensor([index[name] for name in folders])
    return labels, tuple(map(readable, raw))


def readable(name: str) -> str:
    """Return a name as a prompt would write it: words, with blanks between them."""
    return " ".join(name.replace("_", " ").split())


def require_classes(
    labels: Int[Tensor, " n"], names: Sequence[str], where: object
) -> None:
    """Check that there are two classes or more, and that none is empty."""
    if len(names) < 2:
        raise DatasetError(
            f"{where} holds {len(names)} class: {', '.join(names)}. Classification "
            "needs at least two."
        )
    present = set(labels.tolist())
    gone = next((label for label in range(len(names)) if label not in present), None)
    if gone is not None and present <= set(range(len(names))):  # else: Dataset says so
        raise DatasetError(
            f"Class {gone} ({names[gone]!r}) has no record in {where}. Add some, or "
            "take it out."
        )
