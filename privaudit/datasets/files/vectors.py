"""Embeddings that users bring: arrays in .npz, .npy and .safetensors files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from privaudit.core.arrays import DAMAGE, map_npy, read_npz
from privaudit.core.bounded_files import open_regular, reading_errors
from privaudit.core.errors import DatasetError, PrivauditError
from privaudit.core.limits import check_limit
from privaudit.core.storage import read_bytes
from privaudit.datasets.files.mapped_tensors import map_tensors

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]
MAPPED = (".npy", ".safetensors")
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # how read_arrays returns it
_ZIP = b"PK"  # how a zip begins, whatever it is called
_ROWS = 8192  # looked at together


def read_arrays(file: Path) -> Arrays:
    """Return a file's arrays by name; that of an .npy is named after the file.

    Those of an .npz are read, within bounds. Others are mapped: the system reads what
    is used.
    """
    with reading_errors(file), open_regular(file) as opened:
        is_zip = opened.read(2) == _ZIP
    try:
        if is_zip or file.suffix == ".npz":
            return read_npz(read_bytes(file, "arrays"), str(file))
        if file.suffix == ".safetensors":
            tensors = map_tensors(file)
            return {name: _as_array(tensor) for name, tensor in tensors.items()}
        return {file.stem: map_npy(file)}
    except PrivauditError:
        raise
    except DAMAGE:
        # numpy's own text says to load what is not trusted with pickle.
        raise DatasetError(
            f"{file} cannot be read: it is damaged, of another kind than its name says, "
            "or holds Python objects, which are never read. Write it with numpy.savez, "
            "numpy.save or safetensors, names as strings and numbers as numbers."
        ) from None


def as_strings(raw: Shaped[np.ndarray, "..."], what: str) -> list[str]:
    """Return an array's values as text, within bounds."""
    wide = 4 if raw.dtype.kind == "S" else 1  # numpy's text has four bytes a letter
    check_limit("records", raw.size, what)
    check_limit("arrays", raw.nbytes * wide, what)
    return [str(one) for one in (raw.astype(str) if wide == 4 else raw).ravel()]


def as_vectors(
    raw: Shaped[np.ndarray, "..."], file: Path, scale: float | None = None
) -> Float[np.ndarray, "n dim"]:
    """Return float32 vectors, none of which is zero or not finite.

    Those that are float32 stay where they are; others are converted in memory.
    """
    kinds = "f" if scale is None else "fu"
    usable = raw.dtype.kind in kinds or raw.dtype == BFLOAT16
    if raw.ndim != 2 or not usable or not raw.size:
        raise DatasetError(
            f"The embeddings in {file} are {raw.dtype} of shape {raw.shape}. Store "
            "them as floats, [records, size], or as unsigned bytes with a scale."
        )
    vectors: Float[np.ndarray, "n dim"] = raw
    if raw.dtype != np.float32 or scale is not None:
        check_limit("arrays", 4 * raw.size, f"{file} as float32")
        vectors = _as_float32(raw) * np.float32(1 if scale is None else scale)
    for first in range(0, len(vectors), _ROWS):
        some = vectors[first : first + _ROWS]
        bad = ~np.isfinite(some).all(axis=1) | (some == 0).all(axis=1)
        if bad.any():
            raise DatasetError(
                f"Embedding {first + int(bad.argmax())} in {file} is all zeros or not "
                "finite, and has no direction. Compute it again, or take the record "
                "out."
            )
    return vectors


def _as_array(tensor: Tensor) -> Shaped[np.ndarray, "..."]:
    """Return a mapped tensor where it lies; numpy has no bfloat16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def _as_float32(raw: Shaped[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    if raw.dtype != BFLOAT16:
        return raw.astype(np.float32)
    bits = raw["bfloat16"].astype(np.uint32)  # bfloat16 is the upper half of float32
    bits <<= 16
    return bits.view(np.float32)
