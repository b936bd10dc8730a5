"""Embeddings that were made elsewhere, for owners who do not hand out pictures."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from pydantic import TypeAdapter
from torch import Tensor

from privaudit.core.errors import DatasetError, PrivauditError
from privaudit.core.limits import check_limit, open_regular, reading_errors
from privaudit.core.storage import DAMAGE, map_npy, read_bytes, read_npz
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.files.mapped_tensors import map_tensors
from privaudit.datasets.images.picture_files import part_of, readable, require_classes
from privaudit.datasets.sources import on_disk, only_file

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


NAMES = ("class_names", "classnames", "domain_names")
OTHER_NAMES = {
    "embeddings": ("emb", "features"),
    "labels": ("label",),
    "class_names": ("classnames",),
}


@on_disk(
    "feature-bank",
    summary="Precomputed image embeddings, without images.",
    needs="one .npz with embeddings [n, size], labels [n] and class_names, and if "
    "you like scale, split, domains and domain_names; or a folder of these as "
    ".npy or .safetensors",
    source="Write it with numpy.savez, or numpy.save",
)
def read_feature_bank(path: Path) -> Dataset:
    """Read embeddings, labels and class_names: an npz file, or a folder of arrays.

    In a folder each .npy is the array of its name, a .safetensors holds arrays by name,
    and strings may also lie in NAME.json, as a list. Those are mapped, not read.

    It may also hold ``scale`` (which embeddings in bytes are multiplied by), ``split``
    (0, 1 and 2, or "train", "val" and "test"), ``domains`` with ``domain_names``, and
    ``template``. The names emb, label, classnames, and domain with domains, do too.
    """
    file, arrays = _read(path)
    named = as_strings(take(arrays, "class_names", file), f"class_names of {file}")
    class_names = tuple(map(readable, named))
    labels = _whole(take(arrays, "labels", file), "labels", file)
    require_classes(labels, class_names, file)
    split = _split(arrays, file)
    domains, domain_names = _domains(arrays, file)
    for what, numbers in (("split", split), ("domains", domains)):
        if numbers is not None and len(numbers) != len(labels):
            raise DatasetError(
                f"{file} holds {len(labels)} labels, and {what} for {len(numbers)} "
                "records. Give one for each record."
            )
    return Dataset(
        FeatureBank(_embeddings(arrays, file)),
        labels,
        class_names,
        template=_template(arrays, file),
        split=split,
        domains=domains,
        domain_names=domain_names,
    )


def _read(path: Path) -> tuple[Path, Arrays]:
    """Return the arrays, and the file or folder that they are from."""
    folder = path.parent if path.suffix in MAPPED and path.is_file() else path
    files = [file for file in sorted(folder.glob("*")) if file.suffix in MAPPED]
    if path.suffix == ".npz" or any(folder.glob("*.npz")) or not files:
        missing = (
            f"There is no .npz file in {path}, and no .npy or .safetensors. Put one "
            "there."
        )
        file = only_file(path, "*.npz", missing)
        return file, read_arrays(file)
    found: dict[str, Shaped[np.ndarray, ...]] = {}
    for file in files:
        arrays = read_arrays(file)
        if twice := found.keys() & arrays.keys():
            raise DatasetError(
                f"{folder} holds {min(twice)} twice, also in {file.name}. Leave one."
            )
        found |= arrays
    for name in NAMES:
        file = folder / f"{name}.json"
        if file.exists():
            found[name] = np.array(read_checked(file, TypeAdapter(list[str])))
    return folder, found


def take(
    arrays: Arrays, name: str, file: Path, *others: str
) -> Shaped[np.ndarray, "..."]:
    """Return an array by its name, or by another that it may have.

    Raises:
        DatasetError: It is not there.
    """
    for known in (name, *OTHER_NAMES[name], *others):
        if known in arrays:
            return arrays[known]
    raise DatasetError(
        f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}, and no {name}. Add it."
    )


def _embeddings(arrays: Arrays, file: Path) -> Float[Tensor, "n dim"]:
    raw = take(arrays, "embeddings", file)
    if raw.dtype.kind == "u" and "scale" not in arrays:
        raise DatasetError(
            f"The embeddings in {file} are {raw.dtype}, and there is no scale to "
            "multiply them by. Add it, as one number."
        )
    return torch.from_numpy(as_vectors(raw, file, _scale(arrays, file)))


def _scale(arrays: Arrays, file: Path) -> float | None:
    if "scale" not in arrays:
        return None
    raw = arrays["scale"]
    if raw.size != 1 or raw.dtype.kind not in "fiu":
        raise DatasetError(
            f"The scale in {file} is {raw.dtype} of shape {raw.shape}. Store one number."
        )
    if not (scale := float(raw.reshape(()))) > 0:
        raise DatasetError(f"The scale in {file} is {scale:g}. Store one above 0.")
    return scale


def _template(arrays: Arrays, file: Path) -> str:
    if "template" not in arrays:
        return "a photo of a {}."
    texts = as_strings(arrays["template"], f"template of {file}")
    if len(texts) != 1:
        raise DatasetError(f"{file} holds {len(texts)} templates. Store one text.")
    return texts[0]


def _whole(raw: Shaped[np.ndarray, "..."], what: str, file: Path) -> Int[Tensor, " n"]:
    if raw.ndim != 1 or raw.dtype.kind not in "iu":
        raise DatasetError(
            f"The {what} in {file} are {raw.dtype} of shape {raw.shape}. Store one "
            "whole number for each record."
        )
    check_limit("records", len(raw), str(file))
    return torch.from_numpy(raw.astype(np.int64))


def _split(arrays: Arrays, file: Path) -> Int[Tensor, " n"] | None:
    if "split" not in arrays:
        return None
    raw = arrays["split"]
    if raw.dtype.kind not in "US":
        return _whole(raw, "split", file)
    texts = as_strings(raw, f"split of {file}")
    return torch.tensor([part_of(text, f"A record in {file}") for text in texts])


def _domains(
    arrays: Arrays, file: Path
) -> tuple[Int[Tensor, " n"] | None, tuple[str, ...]]:
    """Return each record's domain and their names.

    ``domain`` is one for each record, with the names in ``domains``; without it,
    ``domains`` is one for each record. Strings name themselves.
    """
    if "domain" in arrays:
        each, names = arrays["domain"], arrays.get("domains")
    elif "domains" in arrays:
        each, names = arrays["domains"], arrays.get("domain_names")
    else:
        return None, ()
    if each.dtype.kind in "US":
        texts = as_strings(each, f"domains of {file}")
        names, each = np.unique(texts, return_inverse=True)
    if names is None:
        raise DatasetError(
            f"{file} numbers the domains, and does not name them. Add domain_names."
        )
    numbers = _whole(np.asarray(each), "domains", file)
    named = as_strings(names, f"domain_names of {file}")
    return numbers, tuple(map(readable, named))
