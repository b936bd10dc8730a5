"""Pictures sorted into folders: one level for each of their attributes."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.core.errors import DatasetError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.files.archives import FolderStore
from privaudit.datasets.store import Store

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
