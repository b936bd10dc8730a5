"""Data sets that users bring: where they are looked for, what they need, which classes.

All readers raise MissingFileError for what is not there, LimitError for what is larger
than a bound, and DatasetError, a ConfigError as that is, for what is damaged or of another
form. The text names the file, and the line or record in it.
"""

import csv
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from jaxtyping import Int

from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    MissingFileError,
    nearest,
    shown,
)
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.limits import check_limit, read_bytes, reason_of
from privaudit.datasets.dataset import (
    DATASETS,
    Dataset,
    FeatureBank,
    Images,
    PixelImages,
    Texts,
)
from privaudit.datasets.images.picture_files import EncodedPictures, readable
from privaudit.datasets.named_places import located, search_path


def named_classes(given: str) -> str:
    """Return class names with commas between them, of a choice as users give it.

    Names that hold a comma stand in quotes, as in a .csv.

    Args:
        given: Such names; or a name of ``KNOWN_CLASSES``; or a .txt with one a line.
    """
    if given in KNOWN_CLASSES:
        return _joined(KNOWN_CLASSES[given])
    if given.endswith(".txt"):
        try:
            text = read_bytes(Path(given).expanduser()).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ConfigError(f"{given} lists no classes: it is no text.") from None
        return _joined(line for line in text.splitlines() if line.strip())
    return _joined(_listed(given))


def _joined(names: Iterable[str]) -> str:
    doubled = [readable(name).replace('"', '""') for name in names]
    quoted = [f'"{name}"' if {",", '"'} & {*name} else name for name in doubled]
    return ",".join(quoted)


def _listed(names: str) -> list[str]:
    try:
        return next(csv.reader([" ".join(names.split())], skipinitialspace=True), [])
    except csv.Error as error:
        raise ConfigError(
            f"The classes {shown(names)} cannot be read ({error}). Write names with "
            "commas between, in quotes where one holds a comma."
        ) from None


def only_classes(dataset: Dataset, names: str) -> Dataset:
    """Return the records of some classes, in the data set's own order.

    Raises:
        DatasetError: There are fewer than two, one is there twice, or the data set has
            none, or several, of that name.
    """
    wanted, there = _listed(names), dataset.class_names
    found = _places(wanted, there)
    if unknown := [name for name, at in zip(wanted, found, strict=True) if not at]:
        raise DatasetError(
            f"{len(unknown)} of the {len(wanted)} chosen classes are none of the data "
            f"set's {len(there)}, such as {unknown[0]!r}."
            f"{nearest(unknown[0], there)} It has {', '.join(there[:6])} and so on."
        )
    if several := next((at for at in found if len(at) > 1), None):
        raise DatasetError(
            f"{' and '.join(repr(there[place]) for place in several)} are two classes, "
            "and the one that was chosen may be either. Write it as it is there."
        )
    chosen = torch.tensor(sorted({place for at in found for place in at}))
    if len(chosen) < max(2, len(wanted)):
        raise DatasetError(
            f"The classes {names!r} were chosen, and two or more different ones are "
            "needed. Write them with commas between."
        )
    kept = torch.isin(dataset.labels, chosen).nonzero().flatten()
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


def _places(wanted: Sequence[str], there: Sequence[str]) -> list[list[int]]:
    """Return where each name stands: as it is written, else with blanks, in any case."""
    tables: dict[Callable[[str], str], dict[str, list[int]]]
    tables = {way: {} for way in (str, readable, _plain)}
    for way, table in tables.items():
        for place, name in enumerate(there):
            table.setdefault(way(name), []).append(place)
    matches = (
        (table.get(way(name)) for way, table in tables.items()) for name in wanted
    )
    return [next(filter(None, match), []) for match in matches]


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


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table are that a user brings; None: as they are known.

    Attributes:
        image: Name of the column that holds pictures.
        label: Name of the column that holds the class.
        text: Holds a text, or captions; a pair of texts with a comma between the names.
        owner: Holds whose a record is.
        group: Holds what records of one unit share, such as a patient.
    """

    image: str | None = None
    label: str | None = None
    text: str | None = None
    owner: str | None = None
    group: str | None = None


NO_COLUMNS = TableColumns()
Reader = TypeVar("Reader", bound=Callable[..., Dataset])


@dataclass(frozen=True)
class OnDisk:
    """A data set that lies on a disk; calling it reads it.

    Attributes:
        summary: What it is, in one line.
        needs: What has to lie there, without a full stop.
        source: What to do to get it, such as "Download ... from ...".
        read: Makes a data set of the folder or file, and of :class:`TableColumns` where
            it takes them.
        folders: Further names of its folder, such as those that other programs give it.
        fetch: Finds a folder by a name that is no place here.
    """

    summary: str
    needs: str
    source: str
    read: Callable[..., Dataset]
    folders: tuple[str, ...] = ()
    fetch: Callable[[str], Path] | None = None
    takes_columns: bool = False

    def __call__(self, path: Path, columns: TableColumns = NO_COLUMNS) -> Dataset:
        """Read it."""
        return self.read(path, columns) if self.takes_columns else self.read(path)


def on_disk(name: str, **about: Any) -> Callable[[Reader], Reader]:
    """Return a decorator that enters a reader under a name, with what OnDisk tells."""

    def enter(read: Reader) -> Reader:
        DATASETS.register(name)(OnDisk(read=read, **about))
        return read

    return enter


_CLASSES = Path(__file__).with_name("known_classes.toml").read_text(encoding="utf-8")
KNOWN_CLASSES: Mapping[str, tuple[str, ...]] = {
    name: tuple(classes) for name, classes in tomllib.loads(_CLASSES).items()
}


def name_and_place(
    name: str, path: str | Path | None = None
) -> tuple[str, str | Path | None]:
    """Return a data set's name and place; NAME:PLACE says both at once.

    Example:
        >>> name_and_place("hf:owner/pets")
        ('hf', 'owner/pets')
    """
    name, colon, place = name.partition(":")
    if not colon:
        return name, path
    if path is not None or not place:
        raise ConfigError(
            f"The data set {name}:{place} was requested, and {path or 'no place'} as "
            f"its place. Give one place: {name}:PLACE."
        )
    return name, place


def is_hub_name(place: str) -> bool:
    """Say whether a place may be a name on the hub: NAME, or OWNER/NAME."""
    return re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", place, re.ASCII) is not None


def load_dataset(
    name: str,
    path: str | Path | None = None,
    columns: TableColumns = NO_COLUMNS,
    classes: str | None = None,
) -> Dataset:
    """Return a data set by its name in ``privaudit list datasets``.

    A second call returns the same object, so what changed on the disk meanwhile is only
    seen by another process.

    Args:
        name: One of these names, or NAME:PLACE.
        path: Its folder or file; None looks in the usual places.
        columns: Which columns of a data set in tables are what.
        classes: Names with commas between them: records of other classes are left out.
    """
    name, path = name_and_place(name, path)
    entry = DATASETS.find(name)
    if columns != NO_COLUMNS and not getattr(entry, "takes_columns", False):
        raise ConfigError(
            f"Columns were named, and the data set {name!r} has none to choose. Leave "
            "--image-column, --label-column, --text-column, --owner-column and a column "
            "as --groups out, or use --dataset hf:FOLDER."
        )
    if not isinstance(entry, OnDisk):
        if path is not None:
            raise ConfigError(
                f"The data set {name!r} is part of the package, and {path} was given "
                "for it. Leave the path out, or name the kind of data that lies there: "
                "`privaudit list datasets`."
            )
        return _load(name, None, columns, classes)
    return _load(name, find_folder(name, entry, path), columns, classes)


@lru_cache(maxsize=4)
def _load(
    name: str, path: Path | None, columns: TableColumns, classes: str | None
) -> Dataset:
    dataset = _read(name, path, columns)
    chosen = only_classes(dataset, classes) if classes else dataset
    check_limit("classes", len(chosen.class_names), f"The data set {path or name}")
    return chosen


def _read(name: str, path: Path | None, columns: TableColumns) -> Dataset:
    entry = DATASETS.find(name)
    if path is None:
        return entry()
    try:
        return entry(path, columns) if columns != NO_COLUMNS else entry(path)
    except OSError as error:  # a name that a list holds, and no system takes
        raise DatasetError(
            f"The data set in {path} cannot be used: {shown(str(error.filename))}: "
            f"{reason_of(error)}. Fix the list, or the file."
        ) from None
    except ConfigError as error:
        if str(path) in str(error):
            raise
        raise DatasetError(f"The data set in {path} cannot be used. {error}") from None


def find_folder(name: str, entry: OnDisk, path: str | Path | None = None) -> Path:
    """Return where a data set lies: at ``path``, or in one of the usual places."""
    looked = [located(path)] if path is not None else list(places(name, entry))
    for place in looked:
        if place.exists():
            return place.resolve()
    if entry.fetch is not None and path is not None and is_hub_name(str(path)):
        return entry.fetch(str(path)).resolve()
    then = "name its place with --data"
    if path is None:
        then = f"put it into {looked[0]}, or {then}"
    raise MissingFileError(
        f"The data set {name!r} is not in {' or '.join(map(str, looked))}. It needs "
        f"{entry.needs}. {entry.source}, and {then}."
    )


def places(name: str, entry: OnDisk) -> Iterator[Path]:
    """Yield where below the search path a data set is looked for, best first."""
    for root in search_path():
        for folder in (name, *entry.folders):
            yield root / folder


def only_file(path: Path, pattern: str, missing: str) -> Path:
    """Return a file that was named, or a folder's only one of a name like ``pattern``.

    Where there is none, the error says ``missing``.
    """
    if path.is_file():
        return path
    files = sorted(path.glob(pattern))
    if not files:
        raise MissingFileError(missing)
    if len(files) > 1:
        raise DatasetError(
            f"{path} holds {', '.join(file.name for file in files)}. Name one of them."
        )
    return files[0]
