"""CIFAR's Python version: pickles of arrays and lists, read with nothing of them run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from privaudit.core.errors import DatasetError
from privaudit.datasets.files.pickled_arrays import PickledArray, array_constructors
from privaudit.datasets.files.plain_pickle import read_plain_pickle

PIXELS = 3 * 32 * 32


def pickled_rows(content: bytes, what: str, labels: str) -> UInt8[np.ndarray, "n row"]:
    """Return a part as the binary version has it: the class, then reds, greens, blues.

    The classes stand under the key ``labels``.
    """
    entries = _entries(content, what)
    table, classes = entries.get("data"), entries.get(labels)
    array = table.array if isinstance(table, PickledArray) else np.zeros(0)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != PIXELS:
        raise DatasetError(
            f"{what} has no array 'data' of [n, {PIXELS}] unsigned bytes. Download it "
            "again."
        )
    numbers = classes if isinstance(classes, list) else []
    if len(numbers) != len(array) or any(
        type(number) is not int or not 0 <= number < 256 for number in numbers
    ):
        raise DatasetError(
            f"{what} has {len(array)} pictures, and no list {labels!r} of as many "
            "classes. Download it again."
        )
    column = np.array(numbers, dtype=np.uint8)[:, None]
    return np.concatenate([column, array], axis=1)


def pickled_names(content: bytes, what: str, key: str) -> Sequence[str]:
    """Return the class names in a pickle."""
    listed = _entries(content, what).get(key)
    names = [_decoded(name) for name in listed] if isinstance(listed, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise DatasetError(f"{what} has no list {key!r} of texts. Download it again.")
    return names


def _entries(content: bytes, what: str) -> dict[Any, Any]:
    """Return the pickle's dict, whose keys are bytes where Python 2 wrote them."""
    found = read_plain_pickle(content, what, array_constructors(content))
    if not isinstance(found, dict):
        raise DatasetError(
            f"{what} holds a {type(found).__name__}, and not CIFAR's dict. Download it "
            "again."
        )
    return {_decoded(key): value for key, value in found.items()}


def _decoded(text: Any) -> Any:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
