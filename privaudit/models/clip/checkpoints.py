"""Checkpoints: weights from a file into a CLIP, checked tensor by tensor."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from privaudit.core.arrays import DAMAGE
from privaudit.core.bounded_files import open_regular, open_zip
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.models.clip.torch_archive import open_archive

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

    Raises:
        MissingFileError: There is no such file.
    """
    check_is_there(path)
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
