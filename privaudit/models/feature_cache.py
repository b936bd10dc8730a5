"""Image features, computed once for each set of pictures."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from privaudit.errors import MissingFileError, StorageError, TranscriptError
from privaudit.models.promptable_clip import PromptableCLIP
from privaudit.storage import make_private_folder, read_tensors, write_tensors


def default_folder() -> Path:
    """Return ``$PRIVAUDIT_CACHE``, or ``~/.cache/privaudit`` where it is not set."""
    named = os.environ.get("PRIVAUDIT_CACHE")
    return Path(named) if named else Path("~/.cache/privaudit").expanduser()


def cached_features(
    model: PromptableCLIP,
    pictures: Float[Tensor, "n 3 h w"],
    folder: Path | None = None,
) -> Float[Tensor, "n dim"]:
    """Return :meth:`PromptableCLIP.encode_images`, from the disk if it was done before.

    The file is named after the content of model and pictures, so it cannot go stale.
    A damaged file is written anew. Features of pictures are as sensitive as the
    pictures: the folder is made for its owner only. A folder that cannot be written
    costs the time to compute again, and nothing else.

    Args:
        model: Its weights and architecture are part of the name.
        pictures: As :meth:`PromptableCLIP.preprocess_batch` returns them.
        folder: Where to keep features; None for :func:`default_folder`.
    """
    name = content_hash(model, pictures)
    path = (folder or default_folder()) / "features" / f"{name}.safetensors"
    found = _read(path, expected=(len(pictures), model.dim))
    if found is not None:
        return found.to(model.device)
    features = model.encode_images(pictures)
    with suppress(StorageError, RuntimeError):  # no home folder is a RuntimeError
        make_private_folder(path.parent)
        write_tensors(path, {"features": features})
    return features


def content_hash(model: PromptableCLIP, pictures: Float[Tensor, "n 3 h w"]) -> str:
    """Return a SHA-256 that changes with weights, architecture or pictures."""
    digest = sha256(model.model_hash.encode())
    # Activation and layer-norm epsilon are no weights, and change features too.
    digest.update(f"{model.name}\n{model.clip.visual}\n".encode())
    digest.update(f"{pictures.dtype} {tuple(pictures.shape)}\n".encode())
    digest.update(pictures.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _read(path: Path, expected: tuple[int, int]) -> Tensor | None:
    with suppress(MissingFileError, TranscriptError, OSError):
        features = read_tensors(path).get("features")
        if isinstance(features, Tensor) and features.shape == expected:
            return features
    return None
