"""Image features and image tokens, computed once for each set of pictures."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import (
    MissingFileError,
    StorageError,
    TranscriptError,
)
from privaudit.core.storage import make_private_folder, read_tensors, write_tensors
from privaudit.core.tensors import Tensors
from privaudit.datasets.dataset import FeatureBank, Images, Texts
from privaudit.models.frozen_model import FeatureModel, PictureModel

Kind = Literal["features", "tokens"]
_CHUNK = 256  # pictures that are encoded at a time
_BATCH_BYTES = 2**25  # originals that are held at a time


def default_folder() -> Path:
    """Return ``$PRIVAUDIT_CACHE``, or ``~/.cache/privaudit`` where it is not set."""
    named = os.environ.get("PRIVAUDIT_CACHE")
    return Path(named) if named else Path("~/.cache/privaudit").expanduser()


def cached_features(
    model: FeatureModel,
    images: Images | FeatureBank,
    folder: Path | None = None,
) -> Float[Tensor, "n dim"]:
    """Return each record's l2-normalised feature, from the disk if it was done before.

    The file is named after the content of model and pictures, so it cannot go stale.
    A damaged file is written anew. Features of pictures are as sensitive as the
    pictures: the folder is made for its owner only. A folder that cannot be written
    costs the time to compute again, and nothing else. Pictures are read one by one, so
    memory does not grow with their sizes. A bank's embeddings only pass through
    :meth:`FeatureModel.encode_bank`.

    Args:
        model: Its weights and architecture are part of the name.
        images: Pictures, or a bank of embeddings.
        folder: Where to keep features; None for :func:`default_folder`.

    Raises:
        ConfigError: The model cannot read these pictures or embeddings.
    """
    if isinstance(images, FeatureBank):
        return model.encode_bank(images.embeddings)
    return _cached(model, images, folder, "features", model.encode_images, model.dim)


def cached_text_features(
    about: Sequence[str],
    texts: Texts,
    dim: int,
    encode: Callable[[], Float[Tensor, "n dim"]],
    folder: Path | None = None,
) -> Float[Tensor, "n dim"]:
    """Return each text's l2-normalised feature, as :func:`cached_features`.

    Args:
        about: What of the model the file is named after: weights and settings.
        texts: The file is named after them, too.
        dim: Size of a feature.
        encode: Makes the features.
        folder: Where to keep features; None for :func:`default_folder`.
    """
    parts = (*about, texts.digest, "texts")
    path = _path(sha256("\n".join(parts).encode()).hexdigest(), folder)
    features = _read(path, "features", len(texts), dim)
    if features is None:
        features = encode()
        _keep(path, {"features": features})
    return features


def cached_tokens(
    model: PictureModel, images: Images | FeatureBank, folder: Path | None = None
) -> Float[Tensor, "n tokens dim"]:
    """Return each picture's tokens, as :func:`cached_features`.

    Those of a CLIP are l2-normalised patch features; those of a captioning model are
    what its language model reads. They take a picture's number of tokens times the
    room of its feature: in memory, and on the disk. A bank's embeddings only pass
    through :meth:`PictureModel.tokens_of_bank`.

    Raises:
        ConfigError: A CLIP gets a bank in place of pictures, or its image tower has no
            tokens; a captioning model gets what it does not read.
    """
    if isinstance(images, FeatureBank):
        return model.tokens_of_bank(images.embeddings)
    return _cached(
        model, images, folder, "tokens", model.encode_tokens, model.token_width
    )


def cached_pictures(
    about: Sequence[str],
    images: Images,
    encode: Callable[[], Tensors],
    folder: Path | None = None,
) -> Tensors:
    """Return what is computed of pictures by name, as :func:`cached_features`.

    Args:
        about: What of the model the file is named after: weights and settings.
        images: The file is named after them, too.
        encode: Makes tensors with one row for each picture.
        folder: Where to keep them; None for :func:`default_folder`.
    """
    parts = (*about, images.digest, "pictures")
    path = _path(sha256("\n".join(parts).encode()).hexdigest(), folder)
    with suppress(MissingFileError, TranscriptError, OSError):
        stored = read_tensors(path)
        if stored and all(len(tensor) == len(images) for tensor in stored.values()):
            return stored
    made = encode()
    _keep(path, made)
    return made


def content_hash(model: PictureModel, images: Images, kind: Kind) -> str:
    """Return a SHA-256 that changes with weights, architecture, pictures or kind."""
    parts = (model.model_hash, model.name, model.description, images.digest, kind)
    return sha256("\n".join(parts).encode()).hexdigest()


def _cached(
    model: PictureModel,
    images: Images,
    folder: Path | None,
    kind: Kind,
    encode: Callable[[Tensor], Tensor],
    width: int,
) -> Tensor:
    name = content_hash(model, images, kind)
    path = _path(name, folder)
    cached = _read(path, kind, len(images), width)
    if cached is not None:
        return cached
    encoded = _encode(model, images, range(len(images)), encode)
    _keep(path, {kind: encoded})
    return encoded


def _path(name: str, folder: Path | None) -> Path:
    return (folder or default_folder()) / "features" / f"{name}.safetensors"


def _keep(path: Path, tensors: Tensors) -> None:
    with suppress(StorageError, RuntimeError):  # no home folder is a RuntimeError
        make_private_folder(path.parent)
        write_tensors(path, tensors)


def encoded_features(
    model: FeatureModel, images: Images | FeatureBank, indices: Sequence[int]
) -> Float[Tensor, "n dim"]:
    """Return some records' l2-normalised features; nothing is kept on the disk."""
    if isinstance(images, FeatureBank):
        return model.encode_bank(images.embeddings[list(indices)])
    return _encode(model, images, indices, model.encode_images)


def _encode(
    model: PictureModel,
    images: Images,
    indices: Sequence[int],
    encode: Callable[[Tensor], Tensor],
) -> Tensor:
    nothing = torch.empty(0, 3, model.image_size or 0, model.image_size or 0)
    chunks = _prepared_chunks(model, (images[index] for index in indices))
    encoded = [encode(chunk).cpu() for chunk in chunks]
    return torch.cat(encoded or [encode(nothing).cpu()])


def _read(path: Path, kind: Kind, count: int, dim: int) -> Tensor | None:
    with suppress(MissingFileError, TranscriptError, OSError):
        stored = read_tensors(path).get(kind)
        dimensions = 2 if kind == "features" else 3
        if isinstance(stored, Tensor) and stored.ndim == dimensions:
            return stored if (len(stored), stored.shape[-1]) == (count, dim) else None
    return None


def _prepared_chunks(
    model: PictureModel, pictures: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield what the image tower takes, in the pictures' order."""
    parts: list[Tensor] = []
    for batch in alike(pictures):
        parts.append(model.preprocess_batch(batch))
        if sum(map(len, parts)) >= _CHUNK:
            yield torch.cat(parts)
            parts = []
    if parts:
        yield torch.cat(parts)


def alike(pictures: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield runs of pictures of one size and type as batches."""
    batch: list[Tensor] = []
    for picture in pictures:
        if batch and (
            (picture.shape, picture.dtype) != (batch[0].shape, batch[0].dtype)
            or len(batch) * picture.nbytes >= _BATCH_BYTES
            or len(batch) == _CHUNK
        ):
            yield torch.stack(batch)
            batch = []
        batch.append(picture)
    if batch:
        yield torch.stack(batch)
