"""The tensors of one round on disk: a safetensors file, read tensor by tensor.

The file is read in plain, bounded pieces and not mapped: a mapped file that is cut while
it is used ends the process. Whatever is read is held against its digest, which covers
type, shape and content. So nothing that the header says is believed: a file that is
replaced between two reads, or whose header names another place, is noticed.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from privaudit.core.bounded_files import open_regular, reading_errors
from privaudit.core.errors import LimitError, MissingFileError, TranscriptError
from privaudit.core.limits import check_json, check_limit
from privaudit.core.storage import SAFETENSORS_TYPES
from privaudit.core.tensors import LazyTensors, digest

_TYPES = {name: dtype for dtype, name in SAFETENSORS_TYPES.items()}
_LENGTH = 8  # bytes that say how long the header is


class _Place(NamedTuple):
    """Where a tensor lies in the file, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class Shard:
    """The tensors of a round, by their digests.

    Those that somebody holds are shared; the others are read anew.

    Raises:
        TranscriptError: The file is gone, was cut or altered.
        LimitError: Its header is larger than a bound.
    """

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round
        self.used: dict[str, None] = {}
        """Digests that a manifest names, in its order."""
        self._alive: WeakValueDictionary[str, Tensor] = WeakValueDictionary()
        try:
            with reading_errors(path):
                self._places = _read_header(path)
        except MissingFileError as error:
            raise TranscriptError(f"Round {round}: {error}") from None
        except LimitError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(str(error)) from None

    def use(self, key: str) -> int:
        """Note that a manifest names a tensor, and return its bytes.

        Raises:
            TranscriptError: It is not there.
        """
        if key not in self._places:
            raise TranscriptError(
                f"Round {self.round}: {self.path} lacks a tensor that the manifest "
                "names: it was altered."
            )
        self.used[key] = None
        return self._places[key].nbytes

    def read(self, key: str) -> Tensor:
        """Return a tensor, held against its digest.

        Raises:
            TranscriptError: It was cut or altered, or the file is gone.
            LimitError: It is larger than a bound.
        """
        tensor = self._alive.get(key)
        if tensor is None:
            tensor = self._alive[key] = self._read(self._places[key], key)
        return tensor

    def check(self) -> None:
        """Read every tensor that the manifest names, one after the other.

        Raises:
            TranscriptError: One was cut or altered.
        """
        for key in self.used:
            self.read(key)

    def _read(self, place: _Place, key: str) -> Tensor:
        check_limit("tensors", place.nbytes, f"A tensor in {self.path}")
        try:
            with reading_errors(self.path):
                content = _read_content(self.path, place)
        except MissingFileError as error:
            raise TranscriptError(f"Round {self.round}: {error}") from None
        except (RuntimeError, ValueError, OverflowError) as error:
            raise self._damaged(str(error)) from None
        if digest(content) != key:
            raise self._damaged("the hash of a tensor of this round is another")
        return content

    def _damaged(self, reason: str) -> TranscriptError:
        return TranscriptError(
            f"Round {self.round}: {self.path} cannot be read ({reason[:200]}): it was "
            "cut or altered. Restore it from a copy, or train again."
        )


class StoredTensors(LazyTensors):
    """A message's tensors on disk.

    Raises:
        TranscriptError: One is not in the shard.
    """

    __slots__ = ("nbytes",)

    def __init__(self, shard: Shard, keys: Mapping[str, str]) -> None:
        super().__init__(keys, lambda name: shard.read(keys[name]))
        self.nbytes = sum(map(shard.use, keys.values()))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, in which no name stands twice.

    Raises:
        ValueError: One does: readers differ in which of the two they take.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name stands twice in it")
    return made


def _read_header(path: Path) -> dict[str, _Place]:
    """Return where the tensors are; they fill the file, without gaps or overlaps."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH), "little")
        if not 0 < length <= size - _LENGTH:
            raise ValueError("its header does not fit into it")
        check_limit("text", length, f"The header of {path}")
        content = file.read(length)
    check_json(content, f"The header of {path}")
    header = json.loads(content.decode(), object_pairs_hook=unique)
    if not isinstance(header, dict):
        raise TypeError("its header is no JSON object")
    header.pop("__metadata__", None)
    first = _LENGTH + length
    places = {name: _place(entry, first) for name, entry in header.items()}
    end = first
    for place in sorted(places.values(), key=lambda one: (one.begin, one.nbytes)):
        if place.begin != end:
            raise ValueError("its tensors overlap, or leave gaps")
        end += place.nbytes
    if end != size:
        raise ValueError(f"its tensors end at {end:,} and the file at {size:,} bytes")
    return places


def _place(entry: Mapping[str, Any], first: int) -> _Place:
    begin, end = entry["data_offsets"]
    dtype, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
    numbers = (begin, end, *shape)
    if any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
        raise ValueError("a shape or place in it is no whole number")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("a tensor's shape and bytes differ")
    return _Place(dtype, shape, first + begin, end - begin)


def _read_content(path: Path, place: _Place) -> Tensor:
    """Return a tensor on the CPU, wherever new tensors are made just now."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size < place.begin + place.nbytes:
            raise ValueError("it is shorter than it was")
        content = torch.empty(place.nbytes, dtype=torch.uint8, device="cpu")
        file.seek(place.begin)
        if file.readinto(content.numpy().data) != place.nbytes:
            raise ValueError("it is shorter than it was")
    return content.view(place.dtype).reshape(place.shape)
