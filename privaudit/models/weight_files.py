"""Weights beside the file that describes them: bounded when read, checked by hash."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from safetensors.torch import load
from torch import Tensor, nn

from privaudit.core.errors import ConfigError, MissingFileError

ModelT = TypeVar("ModelT", bound=nn.Module)


def check_hash(path: Path, found: str, wanted: str, remedy: str) -> None:
    """Refuse weights whose SHA-256 is not that of the description.

    Raises:
        ConfigError: The two differ; ``remedy`` is the sentence that says what to do.
    """
    if found != wanted:
        raise ConfigError(
            f"{path} should have the SHA-256 {wanted[:12]}…, and has {found[:12]}…. "
            f"{remedy}"
        )


def load_embedded(
    folder: Path, name: str, build: Callable[[], ModelT]
) -> tuple[ModelT, str]:
    """Read a model that comes with the package, and the SHA-256 of its weights.

    It is frozen, in evaluation mode.

    Args:
        folder: Holds ``NAME.safetensors``, weights in half precision, and ``NAME.json``.
        name: Of the model, without a suffix.
        build: Makes the model at any weights.

    Raises:
        MissingFileError: When one of its files is not there.
        ConfigError: When the weights are not those that the description names.
    """
    path = folder / f"{name}.safetensors"
    content = _read_embedded(path, name)
    wanted = json.loads(_read_embedded(folder / f"{name}.json", name))["sha256"]
    digest = hashlib.sha256(content).hexdigest()
    check_hash(path, digest, wanted, "Restore both files from one pretraining run.")
    return with_stored_weights(build(), load(content)), digest


def with_stored_weights(model: ModelT, stored: Mapping[str, Tensor]) -> ModelT:
    """Give a model weights in half precision, as float32, and freeze it."""
    state = {n: t.float() if t.is_floating_point() else t for n, t in stored.items()}
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


def _read_embedded(path: Path, name: str) -> bytes:
    if not path.is_file():
        raise MissingFileError(
            f"The embedded model needs {path}, which is not there. Reinstall "
            f"privaudit, or run: privaudit pretrain {name}."
        )
    return path.read_bytes()
