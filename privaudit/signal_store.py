"""Signal tables beside the run: what shadow models said, kept for the next attack.

The models are not kept, and nothing here knows the truth: a table can be made again
from the view, the public records and the adversary's seed, which its name is made of.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from privaudit.errors import PrivauditError
from privaudit.storage import make_private_folder, read_tensors, write_tensors

VERSION = 1  # of what a table holds


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
            return read_tensors(path)
        except PrivauditError:
            return None  # cut or damaged: it is made again

    def save(self, tensors: Mapping[str, Tensor], **about: Any) -> None:
        """Keep a table under what it is about."""
        make_private_folder(self.folder)
        write_tensors(self._path(about), tensors)

    def _path(self, about: Mapping[str, Any]) -> Path:
        content = {"version": VERSION, "context": self.context, "about": about}
        text = json.dumps(content, sort_keys=True, default=str)
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self.folder / f"{name}.safetensors"
