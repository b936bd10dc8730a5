"""Signal tables beside the run: what shadow models said, kept for the next attack.

The models are not kept, and nothing here knows the truth: a table can be made again
from the view, the candidates, the public records and the adversary's seed, which its
name is made of. It holds a signature of name and content, and is made again if that
does not fit: the run's header need not list it, so that a killed attack loses none.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.core.errors import PrivauditError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.signing import check_signature, sign
from privaudit.core.storage import make_private_folder, read_tensors, write_tensors
from privaudit.core.tensors import content_of, digest
from privaudit.federation.trainer import Records

FOLDER = "audits/signals"  # of a run
VERSION = 7  # of what a table holds, and of how it comes about
SIGNATURE = "signature"  # 32 bytes of the public key, and 64 of the signature
_PURPOSE, _KEY_BYTES = "signals", 32


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
        """Return a table's tensors, or None if there is none by a trusted key."""
        path = self._path(about)
        if not path.exists():
            return None
        try:
            tensors = read_tensors(path)
            _check(path, tensors, tensors.pop(SIGNATURE, None))
        except PrivauditError:
            return None  # cut, altered or put there: it is made again
        return tensors

    def save(self, tensors: Mapping[str, Tensor], **about: Any) -> None:
        """Keep a table under what it is about."""
        make_private_folder(self.folder)
        path = self._path(about)
        made = sign(_PURPOSE, _signed(path, tensors))
        content = bytearray.fromhex(made["key"] + made["value"])
        signature = torch.frombuffer(content, dtype=torch.uint8)
        write_tensors(path, {**tensors, SIGNATURE: signature})

    def _path(self, about: Mapping[str, Any]) -> Path:
        content = {"version": VERSION, "context": self.context, "about": about}
        text = json.dumps(content, sort_keys=True, default=str)
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self.folder / f"{name}.safetensors"


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and numbers."""
    parts = [[name, digest(tensors[name])] for name in sorted(tensors)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _signed(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {"name": path.name, "sha256": tensors_hash(tensors)}


def _check(path: Path, tensors: Mapping[str, Tensor], found: Tensor | None) -> None:
    """Raise PrivauditError unless who signed a table is trusted."""
    text = b"" if found is None else bytes(content_of(found))
    signature = {"key": text[:_KEY_BYTES].hex(), "value": text[_KEY_BYTES:].hex()}
    check_signature(_PURPOSE, _signed(path, tensors), signature, path)


def content_hash(records: Records) -> str:
    """Return the SHA-256 of what models are asked about, in its order.

    It names answers that are kept, and decides nothing: what is not found by it, such
    as answers about features of another processor, is asked again.
    """
    parts = [records.identities, records.features, records.labels]
    if records.words is not None:
        parts.append(records.words.ids)
    return hashlib.sha256("".join(map(digest, parts)).encode()).hexdigest()
