"""Checkpoints: weights from a file into a CLIP, checked tensor by tensor, nothing run.

A TorchScript archive, as OpenAI published CLIP, holds a module's code, a pickle of its
attributes and the bytes of its tensors. The pickle is read as data, the bytes are
copied, and the code is never looked at.

Source: torch's serialisation, "torch.jit.save" and "torch.save" since 1.6: PREFIX/data.pkl
with ("storage", torch.TYPEStorage, KEY, device, numbers) for the bytes of PREFIX/data/KEY.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.limits import MIB, check_limit, open_regular, open_zip
from privaudit.core.storage import DAMAGE
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


_BIAS = "logit_bias"
# What open_clip, OpenAI and transformers keep beside the weights.
_NO_WEIGHTS = {"attn_mask", "context_length", "input_resolution", "vocab_size"}
LARGER, EXTRA = 4, 2**20  # than the model: float64, an optimiser, names
_ADVICE = "Name the architecture that the checkpoint was made with."
# A checkpoint of OpenAI's holds these, and nobody else's.
_OPENAI = {"input_resolution", "context_length", "vocab_size"}
_NUMBERS = (".position_ids", ".token_type_ids")
_TEXT_PARTS = (
    "token_embedding",
    "positional_embedding",
    "transformer.",
    "ln_final.",
    "text_projection",
)


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Copy the weights in ``path`` into an open_clip model.

    SigLIP's bias of logits may be in the file or not: nothing here depends on it.

    Takes safetensors, TorchScript archives as OpenAI published CLIP, whose code is not
    run, and torch's other files as far as torch reads them without unpickling any
    object (``weights_only``). Undoes two habits of trainers: a "state_dict" level
    and names that begin with "module.".

    Raises:
        MissingFileError: There is no such file.
        ConfigError: The file cannot be read, is far larger than the model, is one of
            OpenAI's and the model has GELU, or its tensors are not the model's; the
            first that differs is named.
    """
    wanted = model.state_dict()
    size = sum(tensor.numel() * tensor.element_size() for tensor in wanted.values())
    found = _read(path, LARGER * size + EXTRA)
    _refuse_gelu(model, path, found)
    tensors = _named_as(wanted, found)
    if _BIAS in wanted:
        tensors.setdefault(_BIAS, wanted[_BIAS])
    for name, tensor in wanted.items():
        if name not in tensors:
            raise ConfigError(
                f"{path} has no tensor {name!r}, which the model has with shape "
                f"{list(tensor.shape)}. {_ADVICE}"
            )
        if tensors[name].shape != tensor.shape:
            raise ConfigError(
                f"Tensor {name!r} of {path} has shape {list(tensors[name].shape)}, and "
                f"the model's {list(tensor.shape)}. {_ADVICE}"
            )
    extra = sorted(tensors.keys() - wanted.keys())
    if extra:
        raise ConfigError(
            f"{path} has a tensor {extra[0]!r}, which the model has not. {_ADVICE}"
        )
    model.load_state_dict(tensors)


def check_is_there(path: Path) -> None:
    """Refuse a missing checkpoint, before a model is built for it, which takes seconds."""
    if not path.is_file():
        raise MissingFileError(
            f"There is no checkpoint {path}. Give the path of a .safetensors or .pt file."
        )


def says_quick_gelu(path: Path) -> bool:
    """Say whether a checkpoint itself tells that it was trained with QuickGELU.

    OpenAI's do: their archives hold modules of that name, and their state dicts the
    sizes that open_clip's leave out. Of others nothing is known, nor of files that only
    torch reads: :func:`load_checkpoint` looks at those once they are read.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return _are_openais(file.keys())
        archive = open_archive(path)
        places = archive.places() if archive else {}
    except (ConfigError, SafetensorError, *DAMAGE):
        return False  # whoever loads it says what is wrong
    if archive is None:
        return False
    names = [name.removeprefix("state_dict.") for name in places]
    return "QuickGELU" in archive.kinds or _are_openais(names)


def _are_openais(names: Iterable[str]) -> bool:
    return {name.removeprefix("module.") for name in names} >= _OPENAI


def _refuse_gelu(model: nn.Module, path: Path, names: Iterable[str]) -> None:
    """Refuse OpenAI's weights for a model that would run them through GELU."""
    kinds = {type(part).__name__ for part in model.modules()}
    if "QuickGELU" not in kinds and _are_openais(names):
        raise ConfigError(
            f"{path} says that it was trained with QuickGELU, as OpenAI's weights, and "
            "the model has GELU: its features would be wrong. Name QuickGELU: "
            '"quick_gelu": true in the configuration, or a tag such as @openai.'
            " Saved as .safetensors, its state dict says so by itself."
        )


def _read(path: Path, most: int) -> dict[str, Tensor]:
    check_is_there(path)
    _refuse_large(path, path.stat().st_size, most)
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}): it was cut or altered."
            ) from None
    return _state_dict(path, _read_torch_file(path, most))


def _refuse_large(path: Path, size: int, most: int) -> None:
    """Refuse files that hold far more than the model, before they are read."""
    if size > most:
        raise ConfigError(
            f"{path} holds {size:,} bytes, and the model's weights take a quarter of "
            f"{most:,} at most: it is another model's, or holds more than weights. "
            f"{_ADVICE}"
        )


def _read_torch_file(path: Path, most: int) -> Any:
    try:
        with open_regular(path) as file:
            if is_zipfile(file):
                entries = open_zip(file, str(path)).infolist()
                _refuse_large(path, sum(entry.file_size for entry in entries), most)
                if any(e.filename.endswith("/constants.pkl") for e in entries):
                    scripted = open_archive(path)
                    return scripted.tensors() if scripted else {}
        return torch.load(path, map_location="cpu", weights_only=True)
    except ConfigError:
        raise
    except (UnpicklingError, *DAMAGE, MemoryError, RecursionError, IndexError):
        raise ConfigError(
            f"{path} is no file of plain tensors that torch can read without running "
            "code from it: it was cut or altered, or holds pickled objects. Download it "
            "again, or save the state dict as .safetensors."
        ) from None


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    if isinstance(content, Mapping) and "state_dict" in content:
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{path} holds a {type(content).__name__}, not a state dict. Save the "
            "model's state dict as .safetensors."
        )
    return {name: value for name, value in content.items() if torch.is_tensor(value)}


def _named_as(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Rename tensors to the model's own names, where only the habit differs."""
    named = {}
    for full_name, tensor in found.items():
        name = full_name.removeprefix("module.")
        last = name.rpartition(".")[2]
        beside = last in _NO_WEIGHTS or name.endswith(_NUMBERS) or name == _BIAS
        if beside and name not in wanted:
            continue
        if name.startswith(_TEXT_PARTS) and name not in wanted:
            name = f"text.{name}"
        is_scalar = name in wanted and tensor.numel() == wanted[name].numel() == 1
        named[name] = tensor.reshape(wanted[name].shape) if is_scalar else tensor
    return named
