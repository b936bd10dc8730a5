"""Descriptions that lie beside weights, and the hashes that hold the two together."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from privaudit.errors import ConfigError, MissingFileError
from privaudit.limits import check_json
from privaudit.storage import read_bytes, write_bytes

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
