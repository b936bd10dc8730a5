"""Weights that come with the package: written atomically, checked by hash when read."""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load, save
from torch import Tensor, nn

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.limits import check_json
from privaudit.core.storage import read_bytes, write_bytes, write_json

DescriptionT = TypeVar("DescriptionT")


@dataclass(frozen=True)
class DescriptionFile(Generic[DescriptionT]):
    """The file in a folder that says what the folder's model is.

    Attributes:
        name: The file's.
        form: Of what it holds; a pydantic dataclass.
        what: It describes, in a word.
        command: Behind ``privaudit pretrain``, without the folder; makes one.
        again: What to do where it is damaged and there is no copy.
    """

    name: str
    form: type[DescriptionT]
    what: str
    command: str
    again: str

    def write(self, folder: Path, description: DescriptionT) -> None:
        """Write a line for each entry: lists of thousands stay readable around."""
        entries = TypeAdapter(self.form).dump_python(description, mode="json")
        lines = [f"  {json.dumps(key)}: {json.dumps(entries[key])}" for key in entries]
        write_bytes(folder / self.name, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

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
        try:
            return TypeAdapter(self.form).validate_json(_content(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise ConfigError(
                f"{path} describes no {self.what} ({where}: {first['msg']}). Restore "
                f"it, or {self.again} again."
            ) from None


def _content(path: Path) -> bytes:
    content = read_bytes(path)
    check_json(content, str(path))
    return content


def check_hash(path: Path, found: str, wanted: str, remedy: str) -> None:
    """Refuse weights that are not those of the description.

    Args:
        path: Where the weights lie.
        found: Their SHA-256.
        wanted: The description's.
        remedy: What to do, as a sentence.

    Raises:
        ConfigError: The two differ.
    """
    if found != wanted:
        raise ConfigError(
            f"{path} should have the SHA-256 {wanted[:12]}…, and has {found[:12]}…. "
            f"{remedy}"
        )


ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True)
class EmbeddedWeights(Generic[ModelT]):
    """The files of one embedded model: weights in half precision, description, log.

    Attributes:
        name: The model's, and that of its files: ``.safetensors``, ``.json`` and
            ``.jsonl``.
        build: Makes the model at random weights.
        configuration: Says how the model is built.
        packages: Whose versions the description names.
    """

    name: str
    build: Callable[[], ModelT]
    configuration: Callable[[], dict[str, Any]]
    packages: tuple[str, ...]

    def save(self, model: ModelT, out: Path, settings: Any, record: Any) -> None:
        """Write the weights in half precision, and what they are.

        Args:
            model: Whose weights.
            out: Folder to write to; made if missing.
            settings: The pydantic dataclass with which it was trained.
            record: The log's line at this moment, a dataclass.
        """
        out.mkdir(parents=True, exist_ok=True)
        content = save({name: _stored(t) for name, t in model.state_dict().items()})
        description = {
            "name": self.name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "configuration": self.configuration(),
            "settings": TypeAdapter(type(settings)).dump_python(settings, mode="json"),
            "threads": torch.get_num_threads(),
            "versions": {
                name: importlib.metadata.version(name) for name in self.packages
            },
            "last": asdict(record),
        }
        write_bytes(out / f"{self.name}.safetensors", content)
        write_json(out / f"{self.name}.json", description)

    def write_log(self, log: Sequence[Any], out: Path) -> None:
        """Write the training log, dataclasses, one JSON object a line."""
        lines = "".join(json.dumps(asdict(record)) + "\n" for record in log)
        write_bytes(out / f"{self.name}.jsonl", lines.encode())

    def rounded(self, model: ModelT) -> ModelT:
        """Copy a model to the precision in which it is stored, for evaluation."""
        state = model.state_dict()
        return self._frozen({name: _stored(t) for name, t in state.items()})

    def load(self, folder: Path) -> tuple[ModelT, str]:
        """Read the model, frozen and for evaluation, and the SHA-256 of its weights.

        Raises:
            MissingFileError: When one of its files is not there.
            ConfigError: When the weights are not those that the description names.
        """
        path = folder / f"{self.name}.safetensors"
        content = self._read(path)
        wanted = json.loads(self._read(folder / f"{self.name}.json"))["sha256"]
        digest = hashlib.sha256(content).hexdigest()
        check_hash(path, digest, wanted, "Restore both files from one pretraining run.")
        return self._frozen(load(content)), digest

    def _frozen(self, stored: dict[str, Tensor]) -> ModelT:
        model = self.build()
        model.load_state_dict({name: _loaded(t) for name, t in stored.items()})
        return model.eval().requires_grad_(False)

    def _read(self, path: Path) -> bytes:
        if not path.is_file():
            raise MissingFileError(
                f"The embedded model needs {path}, which is not there. Reinstall "
                f"privaudit, or run: privaudit pretrain {self.name}."
            )
        return path.read_bytes()


def _stored(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().contiguous()
    return tensor.half() if tensor.is_floating_point() else tensor


def _loaded(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
