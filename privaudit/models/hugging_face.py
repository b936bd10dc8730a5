"""Loading from transformers and peft, and what foreign folders are held against.

What config.json announces is allocated before the weights are looked at, so it is held
against the weights first. What cannot be loaded is said in one line.

torchvision from the package index is built for CUDA. Beside a CPU-only torch its
compiled operators do not load, and its import, which open_clip and transformers need,
fails with "operator torchvision::nms does not exist": it describes two operators to the
compiler that only the compiled part would have declared. Nothing here uses them:
declaring them is enough.
"""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError
from privaudit.core.lazy_torch import torch
from privaudit.core.limits import check_json, check_limit, open_regular, reading_errors
from privaudit.core.storage import read_bytes
from privaudit.models.precisions import Bits, keep_differentiable, packing
from privaudit.models.remote_code import remote_code_is_refused, remote_code_is_trusted

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_MISSING = "operator torchvision::nms does not exist"
# Declarations vanish with the object that made them.
_declared: list[Any] = []


def import_open_clip() -> ModuleType:
    """Import open_clip, after mending what keeps torchvision from importing.

    Use it instead of ``import open_clip``; the first call must come before anything
    else imports torchvision.
    """
    declare_missing_operators()
    return importlib.import_module("open_clip")


def declare_missing_operators() -> None:
    """Import torchvision; declare its two box operators only if it misses them.

    A torchvision whose compiled part loads declares them itself, and a second
    declaration would abort the process.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # who needs it says so
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
        for name in _OPERATORS:
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{name}{_SIGNATURE}")
            _declared.append(library)
        for name in list(sys.modules):  # what is half imported
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]
        importlib.import_module("torchvision")


_PACKED = 8  # parameters in a byte, at most: what 1-bit weights would hold
# How config.json names a number of layers; max_window_layers of Qwen2 is 28 for any.
_LAYERS = re.compile("(?!max_).*(layers|n_layer|depth)")


def check_folder(source: str) -> None:
    """Refuse pipes, devices, texts of extreme length and layers without weights.

    A name on the hub is left to the hub's client.

    Raises:
        MissingFileError: A file is none.
        LimitError: One besides the weights is larger than a bound.
        ConfigError: config.json announces more layers than the weights have tensors.
    """
    for path in _files(source):
        with reading_errors(path), open_regular(path) as file:
            size = file.seek(0, 2)
        if path.suffix != ".safetensors":
            check_limit("file", size, str(path))
    config = Path(source) / "config.json"
    if config.is_file() and (weights := _weights(source)):
        content = read_bytes(config)
        check_json(content, str(config))
        tensors = sum(map(_count_tensors, weights))
        for name, layers in _layers(json.loads(content)):
            if layers > tensors:
                raise ConfigError(
                    f"{config} says {name} = {layers:,}, and the weights beside it "
                    f"have {tensors:,} tensors. Restore the file."
                )


def _files(source: str) -> list[Path]:
    folder = Path(source)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in entries if not path.is_dir()]


def _weights(source: str) -> list[Path]:
    return [path for path in _files(source) if path.suffix == ".safetensors"]


def _count_tensors(path: Path) -> int:
    import safetensors

    with safetensors.safe_open(path, "pt") as file:
        return len(file.keys())


def _layers(entries: Any) -> Iterator[tuple[str, int]]:
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict):
            yield from _layers(entry)
        elif isinstance(entry, int) and _LAYERS.fullmatch(name):
            yield name, entry


def import_transformers() -> Any:
    """Import transformers, after mending what keeps torchvision from importing."""
    declare_missing_operators()
    return importlib.import_module("transformers")


def import_peft() -> Any:
    """Import peft, which imports transformers and so needs the same."""
    declare_missing_operators()
    return importlib.import_module("peft")


def load_reader(kind: str, what: str, source: str, **options: Any) -> Any:
    """Load a tokenizer, a processor or a configuration."""
    loader = getattr(import_transformers(), kind)
    with loading_errors(what, source):
        check_folder(source)
        trusted = remote_code_is_trusted()
        return loader.from_pretrained(source, trust_remote_code=trusted, **options)


def load_model(
    kind: str,
    what: str,
    source: str,
    device: torch.device,
    dtype: torch.dtype,
    bits: Bits | None = None,
) -> Any:
    """Load a model as :func:`load_reader` does, in one precision and frozen.

    Weights of linear layers are packed into ``bits``, if any.
    """
    packed = {} if bits is None else packing(bits, dtype, device)
    _check_size(kind, what, source)
    options = {"use_safetensors": True, "dtype": dtype, **packed}
    model = load_reader(kind, what, source, **options)
    keep_differentiable(model)
    placed = model if packed else model.to(device)
    return placed.eval().requires_grad_(False)


def _check_size(kind: str, what: str, source: str) -> None:
    """Refuse a configuration of a model far larger than the weights beside it.

    A name on the hub is left to the hub's client.

    Raises:
        ConfigError: It has more parameters than the bytes of the weights could hold.
    """
    if not (weights := _weights(source)):
        return
    with loading_errors(what, source), torch.device("meta"):  # no memory for weights
        loader = getattr(import_transformers(), kind)
        config = load_reader("AutoConfig", what, source)
        if hasattr(loader, "from_config"):
            trusted = remote_code_is_trusted()
            model = loader.from_config(config, trust_remote_code=trusted)
        else:
            model = loader._from_config(config)
    announced = sum(p.numel() for p in model.parameters())
    stored = sum(path.stat().st_size for path in weights)
    if announced > _PACKED * stored:
        raise ConfigError(
            f"config.json in {source} describes a model of {announced:,} parameters, "
            f"and the weights are {stored:,} bytes. Restore the file."
        )


_NAFLEX = (
    "its pictures have patches of any number (NaFlex); SigLIP 2 for pictures of one "
    "size is of type 'siglip', such as siglip2-base-patch16-224"
)
_REASONS = {
    "blip": "its pictures reach the words by attention of its own, into which no "
    "prefix can be put",
    "instructblip": "its picture tokens depend on the question, so they cannot be "
    "computed once",
    "siglip2": _NAFLEX,
    "siglip2_vision_model": _NAFLEX,
    "swinv2": "its layers also see distances between patches, once for all models that "
    "are tuned; the first Swin's do not",
}


def model_type(source: str) -> str:
    """Return what a model's config.json says that it is."""
    return str(load_reader("AutoConfig", "model", source).model_type)


def check_type(source: str, name: str, *wanted: str) -> str:
    """Return a model's type, of those that a family takes.

    Raises:
        MissingFileError: The model is not there.
        ConfigError: It is of another type.
    """
    kind = model_type(source)
    if kind in wanted:
        return kind
    why = _REASONS.get(kind)
    raise ConfigError(
        f"{source!r} is a model of type {kind!r}, and {name} takes those of type "
        f"{' or '.join(map(repr, wanted))}{f': {why}' if why else ''}. Use one of these."
    )


def refuse_types(source: str, name: str, *refused: str) -> None:
    """Refuse models of some types, as :func:`check_type`, before weights are read."""
    if (kind := model_type(source)) in refused:
        raise ConfigError(
            f"{source!r} is a model of type {kind!r}, which {name} does not take: "
            f"{_REASONS[kind]}. Use another."
        )


@contextmanager
def loading_errors(what: str, source: str) -> Iterator[None]:
    """Turn what transformers raises while it loads into one clear line.

    Raises:
        MissingFileError: It is not there, or it could not be downloaded.
        ConfigError: It is there and cannot be used: it would have to run code of its
            own, its weights are pickled, or it is damaged.
    """
    # transformers raises errors of many kinds here, and some of them are plain
    # exceptions of its parsers.
    try:
        with _without_bars():
            yield
    except PrivauditError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        if "trust_remote_code" in str(error):
            way = (
                "within open_clip. Choose one whose architecture transformers has."
                if remote_code_is_refused()
                else "unless you give --trust-remote-code. Choose a model whose "
                "architecture transformers has, or read that code first."
            )
            raise ConfigError(
                f"The {what} {source!r} comes with code of its own, which would run "
                f"here with all your rights, and privaudit runs no such code {way}"
            ) from None
        if isinstance(error, OSError) and "safetensors" not in reason:
            raise MissingFileError(
                f"The {what} {source!r} cannot be loaded: {reason}. Give a folder that "
                "has it, or a name on the hub."
            ) from None
        raise ConfigError(
            f"The {what} {source!r} cannot be used: {reason}. Weights must lie in "
            ".safetensors files beside config.json and the tokenizer's files."
        ) from None


@contextmanager
def _without_bars() -> Iterator[None]:
    logging = import_transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
