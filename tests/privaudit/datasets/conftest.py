import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from PIL import Image

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, Texts
from privaudit.datasets.sources import load_dataset

Bring = Callable[..., Path]


class Payload:
    """Would run code if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a data set ran code",)


def picture(grey: int = 0, size: tuple[int, int] = (6, 4), kind: str = "png") -> bytes:
    """Return a file of one grey; width comes before height."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(buffer, format=kind)
    return buffer.getvalue()


def tree(*folders: str, each: int = 3) -> dict[str, bytes]:
    """Return so many different pictures for each folder."""
    names = [f"{folder}/{number}.png" for folder in folders for number in range(each)]
    return {name: picture(grey) for grey, name in enumerate(names)}


def write_folder(path: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with ZipFile(path, "w") as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return path
    mode = {".tar": "w", ".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}[path.suffix]
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(params=["folder", "x.tar", "x.tar.xz", "x.tgz", "x.zip"])
def bring(request: pytest.FixtureRequest, tmp_path: Path) -> Bring:
    """Write files into a folder, or into an archive of each kind in a folder."""

    def write(files: Mapping[str, bytes], beside: Sequence[str] = ()) -> Path:
        apart = {name: files[name] for name in beside}
        rest = {name: files[name] for name in files if name not in beside}
        home = write_folder(tmp_path / "home", apart)
        if request.param == "folder":
            return write_folder(home, rest)
        write_archive(home / request.param, rest)
        return home

    return write


def greys(dataset: Dataset) -> list[int]:
    """Return the first level of each picture that was read."""
    pictures: Any = dataset.images
    return [int(pictures[n][0, 0, 0]) for n in range(len(dataset))]


def parts_of(dataset: Dataset) -> list[int]:
    assert dataset.split is not None
    return dataset.split.tolist()


def texts_of(dataset: Dataset) -> tuple[tuple[str, ...], ...]:
    assert isinstance(dataset.images, Texts)
    return dataset.images.texts


def assert_refused(name: str, place: Path, message: str) -> None:
    """Assert that a data set is refused in one line, which names its place."""
    with pytest.raises(ConfigError, match=message) as caught:
        load_dataset(name, place)
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)
