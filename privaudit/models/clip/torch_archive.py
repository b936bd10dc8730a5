"""Archives of torch: tensors in zip files, also TorchScript's, with nothing of them run.

A TorchScript archive, as OpenAI published CLIP, holds a module's code, a pickle of its
attributes and the bytes of its tensors. The pickle is read as data, the bytes are
copied, and the code is never looked at.

Source: torch's serialisation, "torch.jit.save" and "torch.save" since 1.6: PREFIX/data.pkl
with ("storage", torch.TYPEStorage, KEY, device, numbers) for the bytes of PREFIX/data/KEY.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
from torch import Tensor

from privaudit.core.bounded_files import open_regular, open_zip
from privaudit.core.limits import MIB, check_limit
from privaudit.datasets.files.plain_pickle import (
    Construct,
    Named,
    Stateful,
    read_plain_pickle,
)

DEPTH = 20  # of modules in modules; CLIP's have six
AXES = 8  # CLIP's tensors have four at most
KEY = 256  # characters of a module's, a tensor's or an entry's own name
NAMES = 16 * MIB  # characters of all names together; CLIP's take some 20 thousand
_TYPES = {
    "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.DoubleStorage": torch.float64,
    "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.ByteStorage": torch.uint8,
    "torch.CharStorage": torch.int8, "torch.BoolStorage": torch.bool,
}  # fmt: skip
_LISTS = tuple(
    f"torch.jit._pickle.build_{kind}list"
    for kind in ("int", "bool", "double", "tensor")
)


@dataclass(frozen=True)
class _Stored(Stateful):
    """Bytes of a tensor, or of several."""

    entry: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class TensorPlace(Stateful):
    """A tensor whose bytes were not read.

    Attributes:
        stored: The entry with its bytes.
        offset: Numbers there before its first.
        shape: Length of each axis.
        stride: Numbers from one step to the next, in each axis.
    """

    stored: _Stored
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Entries(Stateful, dict[Any, Any]):
    """An ordered dict, whose attributes are passed over."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def set_state(self, state: Any) -> None:
        """Pass over ``_metadata``."""


class _Module(Stateful):
    """A module of TorchScript: its attributes."""

    def __init__(self) -> None:
        self.parts: Mapping[Any, Any] = {}

    def set_state(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("a module whose attributes are no dict")
        self.parts = state


def _tensor(stored: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> TensorPlace:
    if not (isinstance(shape, tuple) and isinstance(stride, tuple)):
        raise ValueError("a tensor without a shape")
    if len(shape) != len(stride) or len(shape) > AXES:
        raise ValueError(f"a tensor of {len(shape)} axes with {len(stride)} strides")
    plain = all(type(n) is int and n >= 0 for n in (offset, *shape, *stride))
    if not isinstance(stored, _Stored) or not plain:
        raise ValueError("a tensor without its bytes")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if count > stored.count or (count and last >= stored.count):
        raise ValueError("a tensor of more numbers than are there")
    return TensorPlace(stored, offset, shape, stride)


def _first(value: Any, *_: Any) -> Any:
    return value


def _only_named(*_: Any) -> None:
    raise ValueError("a type that is called")


_CONSTRUCTORS: Mapping[str, Construct] = {
    "collections.OrderedDict": _Entries,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _first,
    **dict.fromkeys(_LISTS, _first),
    **dict.fromkeys(_TYPES, _only_named),
}


class TorchArchive:
    """What a zip of torch's holds, without the bytes of its tensors.

    Attributes:
        scripted: Whether it is TorchScript's.
        kinds: Names of the classes of its modules, where it is.
        content: What the pickle holds, tensors as :class:`TensorPlace`.
    """

    def __init__(self, path: Path, archive: ZipFile) -> None:
        names = {entry.filename for entry in archive.infolist()}
        pickles = [name for name in names if name.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise ValueError("it has no data.pkl")
        self._prefix = pickles[0].removesuffix("data.pkl")
        self._archive, self._names = archive, names
        self.scripted = f"{self._prefix}constants.pkl" in names
        self.kinds: set[str] = set()
        check_limit("text", archive.getinfo(pickles[0]).file_size, str(path))
        self.content = read_plain_pickle(
            archive.read(pickles[0]), str(path), self._find, self._stored
        )

    def _find(self, name: str) -> Construct | None:
        if self.scripted and name.startswith("__torch__."):
            self.kinds.add(name.rpartition(".")[2])
            return _Module
        return _CONSTRUCTORS.get(name)

    def _stored(self, identifier: tuple[Any, ...]) -> _Stored:
        kind, storage, key, _, count = identifier
        if kind != "storage" or not isinstance(storage, Named):
            raise ValueError("bytes of an unknown kind")
        if type(key) is not str or len(key) > KEY:
            raise ValueError("bytes without a name, or with a very long one")
        entry = f"{self._prefix}data/{key}"
        dtype = _TYPES[storage.name]
        size = self._archive.getinfo(entry).file_size
        if type(count) is not int or size != count * dtype.itemsize:
            raise ValueError(f"{entry} has not as many bytes as it declares")
        return _Stored(entry, dtype, count)

    def places(self) -> dict[str, TensorPlace]:
        """Return the tensors by name, behind the names of the modules they are in.

        Raises:
            LimitError: They hold more than can be read.
            ValueError: Modules hold one another without end, or names are too long.
        """
        found: dict[str, TensorPlace] = {}
        characters = 0
        for visits, (name, value) in enumerate(_parts("", self.content, DEPTH)):
            check_limit("entries", visits, "A checkpoint's tree of modules")
            if isinstance(value, TensorPlace):
                characters += len(name)
                if characters > NAMES:
                    raise ValueError(f"its names have more than {NAMES:,} characters")
                found[name] = value
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, their bytes read."""
        found = self.places()
        entries = {place.stored.entry for place in found.values()}
        bytes_of = {one: bytearray(self._archive.read(one)) for one in entries}
        return {
            name: _numbers(bytes_of[p.stored.entry], p.stored.dtype).as_strided(
                p.shape, p.stride, p.offset
            )
            for name, p in found.items()
        }


def _numbers(content: bytearray, dtype: torch.dtype) -> Tensor:
    """Return an entry's bytes as numbers, which are not copied."""
    if not content:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype)


def _parts(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield what a tree of modules and dicts holds, with its names.

    What has a number for its name holds no tensor that is asked for; it is passed over,
    and counts all the same.
    """
    yield name, value
    parts = value.parts if isinstance(value, _Module) else value
    if not isinstance(parts, dict):
        return
    if depth == 0:
        raise ValueError("its modules hold one another without end")
    for key, part in parts.items():
        if not isinstance(key, str):
            yield name, None
            continue
        if len(key) > KEY:
            raise ValueError(f"a name in it has {len(key):,} characters")
        yield from _parts(f"{name}.{key}" if name else key, part, depth - 1)


def open_archive(path: Path) -> TorchArchive | None:
    """Return what a file of torch's holds if it is a zip; None if it is none.

    Raises:
        ConfigError: Its pickle is damaged, or holds other things than tensors.
        ValueError: It is a zip of something else; also the errors of zipfile.
    """
    file = open_regular(path)
    if not is_zipfile(file):
        file.close()
        return None
    return TorchArchive(path, open_zip(file, str(path)))
