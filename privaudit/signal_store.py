"""Signal tables beside the run: what shadow models said, kept for the next attack.

The models are not kept, and nothing here knows the truth: a table can be made again
from the view, the candidates, the public records and the adversary's seed, which its
name is made of. It holds its own hash, and is made again if that does not fit.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privaudit.errors import PrivauditError
from privaudit.storage import make_private_folder, read_tensors, write_tensors

VERSION = 4  # of what a table holds, and of how it comes about
HASH = "sha256"


@dataclass(frozen=True)
class SignalStore:
    """A folder of signal tables.

    Attributes:
        folder: Made at the first save.
        context: What all tables of one adversary depend on, as JSON's types: run,
            transcript, data, model, threat, the adversary's seed.
    """

    folder: Path
    context: Mapping[str, Any]

    def load(self, **about: Any) -> dict[str, Tensor] | None:
        """Return a table's tensors, or None if there is none that can be read."""
        path = self._path(about)
        if not path.exists():
            return None
        try:
            tensors = read_tensors(path)
        except PrivauditError:
            return None  # cut or damaged: it is made again
        written = tensors.pop(HASH, None)
        if written is None or not torch.equal(written, _hash(tensors)):
            return None
        return tensors

    def save(self, tensors: Mapping[str, Tensor], **about: Any) -> None:
        """Keep a table under what it is about."""
        make_private_folder(self.folder)
        write_tensors(self._path(about), {**tensors, HASH: _hash(tensors)})

    def _path(self, about: Mapping[str, Any]) -> Path:
        content = {"version": VERSION, "context": self.context, "about": about}
        text = json.dumps(content, sort_keys=True, default=str)
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self.folder / f"{name}.safetensors"


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names and numbers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _hash(tensors: Mapping[str, Tensor]) -> Tensor:
    digest = bytearray.fromhex(tensors_hash(tensors))
    return torch.frombuffer(digest, dtype=torch.uint8)
