"""Loading from transformers and peft; what cannot be loaded is said in one line."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.models.clip.torchvision_shim import declare_missing_operators
from privaudit.models.foreign_folder import check_folder, check_size
from privaudit.models.quantisation import Bits, keep_differentiable, packing
from privaudit.models.remote_code import remote_code_is_refused, remote_code_is_trusted


def import_transformers() -> Any:
    """Import transformers, after mending what keeps torchvision from importing."""
    declare_missing_operators()
    return importlib.import_module("transformers")


def import_peft() -> Any:
    """Import peft, which imports transformers and so needs the same."""
    declare_missing_operators()
    return importlib.import_module("peft")


def load_reader(kind: str, what: str, source: str, **options: Any) -> Any:
    """Load a tokenizer, a processor or a configuration.

    Args:
        kind: Its class in transformers.
        what: The term for it in errors.
        source: A folder, or a name on the hub.
        **options: Of transformers.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It cannot be used.
    """
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
    dtype: torch.dtype = torch.float32,
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
    """Refuse a folder whose configuration asks for far more than its weights hold."""

    def build() -> Any:
        loader = getattr(import_transformers(), kind)
        config = load_reader("AutoConfig", what, source)
        if hasattr(loader, "from_config"):
            trusted = remote_code_is_trusted()
            return loader.from_config(config, trust_remote_code=trusted)
        return loader._from_config(config)

    with loading_errors(what, source):
        check_size(source, build)


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
    """Return what a model's config.json says that it is.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It cannot be read.
    """
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
    except (ConfigError, MissingFileError):
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
