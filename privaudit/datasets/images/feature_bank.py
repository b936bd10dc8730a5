"""Embeddings that were made elsewhere, for owners who do not hand out pictures."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from pydantic import TypeAdapter
from torch import Tensor

from privaudit.core.errors import DatasetError
from privaudit.core.limits import check_limit
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.files.vectors import (
    MAPPED,
    Arrays,
    as_strings,
    as_vectors,
    read_arrays,
)
from privaudit.datasets.images.class_folders import part_of, readable, require_classes
from privaudit.datasets.sources import on_disk, only_file

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
    named = as_strings(_take(arrays, "class_names", file), f"class_names of {file}")
    class_names = tuple(map(readable, named))
    labels = _whole(_take(arrays, "labels", file), "labels", file)
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


def _take(arrays: Arrays, name: str, file: Path) -> Shaped[np.ndarray, "..."]:
    for known in (name, *OTHER_NAMES[name]):
        if known in arrays:
            return arrays[known]
    raise DatasetError(
        f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}, and no {name}. Add it."
    )


def _embeddings(arrays: Arrays, file: Path) -> Float[Tensor, "n dim"]:
    raw = _take(arrays, "embeddings", file)
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
    return float(raw.reshape(()))


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
