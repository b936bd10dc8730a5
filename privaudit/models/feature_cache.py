"""Feature cache: features and tokens of pictures, computed once for each set of them.

They are encoded in chunks, and each is on the disk before the next one is begun: an
interrupted encoding goes on where it stopped. What is returned lies on the disk, and
takes memory only where it is used.
"""

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import MissingFileError, StorageError, TranscriptError
from privaudit.core.portable_bits import bits_here, computed_with
from privaudit.core.storage import UNFINISHED, cache_folder, make_private_folder
from privaudit.core.tensors import Tensors
from privaudit.datasets.dataset import FeatureBank, Images, Texts
from privaudit.datasets.files.mapped_tensors import join_rows, map_tensors, write_rows
from privaudit.datasets.images.picture_files import EncodedPictures
from privaudit.models.frozen_model import FeatureModel, PictureModel
from privaudit.statistics.progress import Phase, tell

Kind = Literal["features", "tokens"]
Batches = Iterable[Tensor]  # of pictures of one size
_CHUNK = 256  # pictures that are encoded at a time, or a few more
_SILENT = 10.0  # seconds of encoding before a watcher hears of it
_BATCH_BYTES = 2**25  # originals that are held at a time
_DECODERS = 8  # threads at most; each has up to three pictures in memory
_BANK_BYTES = 2**26  # embeddings that are encoded at a time


def cached_features(
    model: FeatureModel, images: Images | FeatureBank, folder: Path | None = None
) -> Float[Tensor, "n dim"]:
    """Return each record's l2-normalised feature, from the disk if it was done before.

    The file is named after the content of model and pictures, so it cannot go stale.
    A damaged file is written anew. Features of pictures are as sensitive as the
    pictures: the folder is made for its owner only. A folder that cannot be written
    costs the time to compute again, and nothing else. Pictures are read one by one, so
    memory does not grow with their sizes. A bank's embeddings only pass through
    :meth:`FeatureModel.encode_bank`, those of a large one by way of the disk. They lie
    in ``folder``, by default in :func:`cache_folder`.
    """
    if isinstance(images, FeatureBank):
        return _of_bank(model, images, folder, "features", model.encode_bank)
    return _of_pictures(model, images, folder, "features", model.encode_images)


def cached_text_features(
    about: Sequence[str], texts: Texts, encode: Callable[[], Float[Tensor, "n dim"]]
) -> Float[Tensor, "n dim"]:
    """Return each text's l2-normalised feature, as :func:`cached_features`.

    The file is named after the texts and ``about``: the model's weights and settings.
    """
    path = _path(hash_of(*about, texts.digest, "texts"), None)
    stored = _stored(path, len(texts), len(texts))
    return (stored or _kept(path, [{"features": encode()}]))["features"]


def cached_tokens(
    model: PictureModel, images: Images | FeatureBank, folder: Path | None = None
) -> Float[Tensor, "n tokens dim"]:
    """Return each picture's tokens, as :func:`cached_features`.

    Those of a CLIP are l2-normalised patch features; those of a captioning model are
    what its language model reads. They take a picture's number of tokens times the
    room of its feature on the disk, and twice as much until all are encoded. A bank's
    embeddings only pass through :meth:`PictureModel.tokens_of_bank`.

    Raises:
        ConfigError: A CLIP gets a bank in place of pictures, or its image tower has no
            tokens; a captioning model gets what it does not read.
    """
    if isinstance(images, FeatureBank):
        return _of_bank(model, images, folder, "tokens", model.tokens_of_bank)
    return _of_pictures(model, images, folder, "tokens", model.encode_tokens)


def cached_pictures(
    name: str,
    images: Images,
    encode: Callable[[Batches], Tensors],
    folder: Path | None = None,
) -> Tensors:
    """Return what is computed of pictures by name, as :func:`cached_features`.

    ``encode`` makes tensors with one row for each picture of a chunk; rows that are
    shorter than another chunk's are padded with zeros.
    """
    with closing(_Chunks(images, range(len(images)))) as chunks:
        path = _path(name, folder)
        return _on_disk(path, len(images), lambda start: encode(chunks.at(start)))


def _on_disk(path: Path, count: int, encode: Callable[[int], Tensors]) -> Tensors:
    """Return so many rows from the disk, encoded first if they are not there.

    ``encode`` makes the chunk of rows that begins at a number.
    """
    began = monotonic()

    def chunk(start: int) -> Tensors:
        if monotonic() - began > _SILENT:
            tell(Phase("", "encode", "", start, count))
        place = path.with_suffix(f".{start}{UNFINISHED}")
        stored = _stored(place, 1, count - start)
        return stored or _kept(place, [encode(start)])

    stored = _stored(path, count, count)
    if stored is None:
        stored = _kept(path, _in_chunks(count, chunk))
        _remove_chunks(path)
    return stored


def content_hash(model: PictureModel, images: Images | FeatureBank, kind: Kind) -> str:
    """Return a SHA-256 that changes with weights, architecture, pictures or kind."""
    return hash_of(model.model_hash, model.name, model.description, images.digest, kind)


def hash_of(*parts: str) -> str:
    """Return the SHA-256 of texts: what a file of the cache is named.

    In portable bits also of what decides about these: a portable run that read features
    of another process would have that one's last digits.
    """
    if bits_here() == "portable":
        here = {**computed_with(), "threads": torch.get_num_threads()}
        parts = *parts, json.dumps(here, sort_keys=True)
    return sha256("\n".join(parts).encode()).hexdigest()


def _of_bank(
    model: PictureModel,
    bank: FeatureBank,
    folder: Path | None,
    kind: Kind,
    encode: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return what a model makes of embeddings; a large bank goes through the disk."""
    rows = max(1, _BANK_BYTES // max(1, bank.embeddings[:1].nbytes))
    if len(bank) <= rows:
        return encode(bank.embeddings)

    def encode_rows(start: int) -> Tensors:
        return {kind: encode(bank.embeddings[start : start + rows]).cpu()}

    path = _path(content_hash(model, bank, kind), folder)
    return _on_disk(path, len(bank), encode_rows)[kind]


def _of_pictures(
    model: PictureModel,
    images: Images,
    folder: Path | None,
    kind: Kind,
    encode: Callable[[Tensor], Tensor],
) -> Tensor:
    name = content_hash(model, images, kind)
    return cached_pictures(name, images, _encoder(model, kind, encode), folder)[kind]


def encoded_features(
    model: FeatureModel, images: Images | FeatureBank, indices: Sequence[int]
) -> Float[Tensor, "n dim"]:
    """Return some records' l2-normalised features; nothing is kept on the disk."""
    if isinstance(images, FeatureBank):
        return model.encode_bank(images.embeddings[list(indices)])
    encode = _encoder(model, "features", model.encode_images)
    with closing(_Chunks(images, indices)) as chunks:
        parts = _in_chunks(len(indices), lambda start: encode(chunks.at(start)))
    return join_rows(parts)["features"]


def _encoder(
    model: PictureModel, kind: Kind, encode: Callable[[Tensor], Tensor]
) -> Callable[[Batches], Tensors]:
    """Return what makes a chunk of pictures into rows."""

    def encode_chunk(batches: Batches) -> Tensors:
        prepared = [model.preprocess_batch(batch) for batch in batches]
        return {kind: encode(torch.cat(prepared)).cpu()}

    return encode_chunk


def _in_chunks(count: int, chunk: Callable[[int], Tensors]) -> list[Tensors]:
    """Return chunks until there are so many rows; a chunk knows where it begins."""
    chunks, done = list[Tensors](), 0
    while done < count:
        chunks.append(chunk(done))
        done += _rows(chunks[-1])
    return chunks


class _Chunks:
    """Pictures chunk by chunk; the next ones are decoded while a chunk is encoded.

    Where a chunk ends depends on nothing before it: one that is made anew is the same.
    """

    def __init__(self, images: Images, indices: Sequence[int]) -> None:
        self._images, self._indices = images, indices
        self._pictures, self._next = _decoded(images, ()), -1
        self._batches = alike(self._pictures)

    def at(self, start: int) -> Iterator[Tensor]:
        """Yield the batches of the chunk that begins at the picture of this number."""
        if start != self._next:
            self.close()
            self._pictures = _decoded(self._images, self._indices[start:])
            self._batches = alike(self._pictures)
        taken = 0
        while taken < _CHUNK and (batch := next(self._batches, None)) is not None:
            yield batch
            taken += len(batch)
        self._next = start + taken

    def close(self) -> None:
        """End decoding."""
        self._pictures.close()


def _decoded(images: Images, indices: Sequence[int]) -> Generator[Tensor]:
    """Yield pictures in order; threads decode the next ones meanwhile."""
    workers = min(_DECODERS, torch.get_num_threads())
    if workers == 1 or not isinstance(images, EncodedPictures):
        yield from (images[index] for index in indices)
        return
    pool, ahead = ThreadPoolExecutor(workers), deque[Future[Tensor]]()
    try:
        for index in indices:
            ahead.append(pool.submit(images.__getitem__, index))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:  # also where nobody asks for more
        pool.shutdown(cancel_futures=True)


def _path(name: str, folder: Path | None) -> Path:
    return (folder or cache_folder()) / "features" / f"{name}.safetensors"


def _stored(path: Path, least: int, most: int) -> Tensors | None:
    """Return a file's tensors if it is whole and has such a number of rows."""
    with suppress(MissingFileError, TranscriptError):
        stored = map_tensors(path)
        if stored and least <= _rows(stored) <= most:
            return stored
    return None


def _kept(path: Path, parts: Sequence[Tensors]) -> Tensors:
    """Return parts as one, from the disk; from memory where it cannot be written."""
    with suppress(StorageError):
        make_private_folder(path.parent)
        write_rows(path, parts)
    rows = sum(map(_rows, parts))
    return _stored(path, rows, rows) or join_rows(parts)


def _remove_chunks(path: Path) -> None:
    """Remove what was written on the way to a file, if that is there.

    So is what a kill left half written. Where the disk was too full for all, the chunks
    stay for the next time.
    """
    chunks = path.parent.glob(f"*{path.stem}*{UNFINISHED}") if path.is_file() else ()
    for chunk in chunks:
        with suppress(OSError):
            chunk.unlink()


def _rows(tensors: Tensors) -> int:
    """Count the rows; none where tensors differ."""
    counts = {len(tensor) for tensor in tensors.values()}
    return counts.pop() if len(counts) == 1 else 0


def alike(pictures: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield runs of pictures of one size and type as batches."""
    batch: list[Tensor] = []
    for picture in pictures:
        if batch and (picture.shape, picture.dtype) != (batch[0].shape, batch[0].dtype):
            yield torch.stack(batch)
            batch = []
        batch.append(picture)
        if len(batch) * picture.nbytes >= _BATCH_BYTES or len(batch) == _CHUNK:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)
