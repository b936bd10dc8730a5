"""Weights beside the file that describes them: bounded when read, checked by hash."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load
from torch import Tensor, nn

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.limits import check_json
from privaudit.core.storage import read_bytes

DescriptionT = TypeVar("DescriptionT")
ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True)
class DescriptionFile(Generic[DescriptionT]):
    """The file in a folder that says what the folder's model is.

    Attributes:
        name: Name of the file in a model's folder.
        form: A pydantic dataclass that its JSON is read as.
        what: It describes, in a word.
        command: Behind ``privaudit pretrain``, without the folder; makes one.
        again: What to do where it is damaged and there is no copy.
    """

    name: str
    form: type[DescriptionT]
    what: str
    command: str
    again: str

    def read(self, folder: Path) -> DescriptionT:
        """Read it.

        Raises:
            MissingFileError: There is none in the folder.
            ConfigError: The file is damaged, or another version's.
        """
        path = folder / self.name
        if not path.is_file():
            raise MissingFileError(
                f"There is no {self.what} in {folder}: {self.name} is not there. Make "
                f"one with: privaudit pretrain {self.command} --out {folder}."
            )
        content = read_bytes(path)
        check_json(content, str(path))
        try:
            return TypeAdapter(self.form).validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise ConfigError(
                f"{path} describes no {self.what} ({where}: {first['msg']}). Restore "
                f"it, or {self.again} again."
            ) from None


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


def read_weights(path: Path, wanted: str, remedy: str) -> bytes:
    """Return the content of a file of tensors, within bounds, if it has this hash."""
    content = read_bytes(path, "tensors")
    check_hash(path, hashlib.sha256(content).hexdigest(), wanted, remedy)
    return content


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
