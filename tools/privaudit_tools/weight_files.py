"""Weights and the files that describe them, written atomically and those of folders read."""

import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save
from torch import Tensor

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.limits import check_json
from privaudit.core.portable_bits import computed_with
from privaudit.core.storage import (
    file_hash,
    read_bytes,
    storage_errors,
    write_bytes,
    write_json,
)
from privaudit.models.hugging_face import loading_errors
from privaudit.models.weight_files import ModelT, check_hash, with_stored_weights

DescriptionT = TypeVar("DescriptionT")


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


def read_weights(path: Path, wanted: str, remedy: str) -> bytes:
    """Return the content of a file of tensors, within bounds, if it has this hash."""
    content = read_bytes(path, "tensors")
    check_hash(path, hashlib.sha256(content).hexdigest(), wanted, remedy)
    return content


def check_shapes(
    path: Path,
    announced: Mapping[str, Tensor],
    stored: Mapping[str, Tensor],
    remedy: str,
) -> None:
    """Refuse a description, at ``path``, of other sizes than the weights beside it."""
    one, other = ({n: t.shape for n, t in of.items()} for of in (announced, stored))
    if one != other:
        raise ConfigError(
            f"{path} describes a model of other sizes than the weights beside it. "
            f"{remedy}"
        )


def save_pretrained(folder: Path, what: str, model: Any, tokenizer: Any) -> str:
    """Put a model of transformers in a folder's place, and return :func:`readers_hash`."""
    with (
        loading_errors(what, str(folder)),
        storage_errors(folder),
        tempfile.TemporaryDirectory(dir=folder.parent) as aside,
    ):
        whole = Path(aside) / "whole"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        if folder.is_dir():
            folder.rename(Path(aside) / "before")
        whole.rename(folder)
    return readers_hash(folder)


def readers_hash(folder: Path) -> str:
    """Return a SHA-256 over a folder's files without weights: configuration, tokenizer."""
    files = sorted(path for path in folder.glob("[!.]*") if path.is_file())
    said = [f"{file_hash(p)} {p.name}\n" for p in files if p.suffix != ".safetensors"]
    return hashlib.sha256("".join(said).encode()).hexdigest()


def write_description(
    file: DescriptionFile[DescriptionT], folder: Path, description: DescriptionT
) -> None:
    """Write a line for each entry: lists of thousands stay readable around."""
    entries = TypeAdapter(file.form).dump_python(description, mode="json")
    lines = [f"  {json.dumps(key)}: {json.dumps(entries[key])}" for key in entries]
    write_bytes(folder / file.name, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def made_with(packages: Sequence[str]) -> dict[str, Any]:
    """Return what the last bits of trained weights hang on, as a description has it."""
    return {
        "threads": torch.get_num_threads(),
        "bits": computed_with()["bits"],
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


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
        content = save(_in_half(model))
        description = {
            "name": self.name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "configuration": self.configuration(),
            "settings": TypeAdapter(type(settings)).dump_python(settings, mode="json"),
            **made_with(self.packages),
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
        return with_stored_weights(self.build(), _in_half(model))


def _in_half(model: torch.nn.Module) -> dict[str, Tensor]:
    whole = {n: t.detach().contiguous() for n, t in model.state_dict().items()}
    return {n: t.half() if t.is_floating_point() else t for n, t in whole.items()}
