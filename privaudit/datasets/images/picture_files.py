"""Pictures in files, decoded one by one when they are needed."""

import hashlib
import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from privaudit.core.errors import (
    DatasetError,
    LimitError,
    MissingFileError,
)
from privaudit.core.limits import check_limit
from privaudit.datasets.files.archives import FolderStore, is_archive, open_store
from privaudit.datasets.store import Store, Wanted, is_picture

BROKEN = (  # what Pillow raises on a broken picture
    OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, struct.error,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
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
        content, name = io.BytesIO(self.content(index)), self.name(index)
        try:
            with Image.open(content, formats=FORMATS) as image:
                _refuse_large(image.size, name)
                _refuse_deep(image.mode)
                pixels = np.array(image.convert("RGB"))
        except LimitError:
            raise
        except BROKEN as error:
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
