"""Embeddings that were made elsewhere, for owners who do not hand out pictures."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from privaudit.core.arrays import read_npz
from privaudit.core.errors import DatasetError, LimitError
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import (
    DATASETS,
    TRAIN,
    Dataset,
    FeatureBank,
)
from privaudit.datasets.images.class_folders import SPLITS, readable, require_classes
from privaudit.datasets.sources import OnDisk, only_file
from privaudit.datasets.store import DAMAGE

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]
OTHER_NAMES = {
    "embeddings": ("emb", "features"),
    "labels": ("label",),
    "class_names": ("classnames",),
}


def read_feature_bank(path: Path) -> Dataset:
    """Read an npz file with embeddings, labels and class_names.

    It may also hold ``scale`` (which embeddings in bytes are multiplied by), ``split``
    (0, 1 and 2, or "train", "val" and "test"), ``domains`` with ``domain_names``, and
    ``template``. The names emb, label, classnames, and domain with domains, do too.

    Args:
        path: The file, or a folder that holds one.

    Raises:
        MissingFileError: There is none.
        DatasetError: It is damaged, an array is missing, or they do not go together.
    """
    missing = f"There is no .npz file in {path}. Put one there."
    file = only_file(path, "*.npz", missing)
    try:
        arrays = read_npz(read_bytes(file, "arrays"), str(file))
    except LimitError:
        raise
    except (*DAMAGE, zipfile.BadZipFile, AttributeError, TypeError):
        # numpy's own text says to load what is not trusted with pickle.
        raise DatasetError(
            f"{file} cannot be read: it is damaged, no npz file, or holds Python "
            "objects, which are never read. Write it with numpy.savez, names as "
            "strings and numbers as numbers."
        ) from None
    class_names = tuple(readable(str(n)) for n in _take(arrays, "class_names", file))
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
        template=str(arrays.get("template", "a photo of a {}.")),
        split=split,
        domains=domains,
        domain_names=domain_names,
    )


def _take(arrays: Arrays, name: str, file: Path) -> Shaped[np.ndarray, "..."]:
    for known in (name, *OTHER_NAMES[name]):
        if known in arrays:
            return arrays[known]
    raise DatasetError(
        f"{file} holds {', '.join(sorted(arrays)) or 'nothing'}, and no {name}. Add it."
    )


def _embeddings(arrays: Arrays, file: Path) -> Float[Tensor, "n dim"]:
    raw = _take(arrays, "embeddings", file)
    if raw.ndim != 2 or raw.dtype.kind not in "fu":
        raise DatasetError(
            f"The embeddings in {file} are {raw.dtype} of shape {raw.shape}. Store "
            "them as floats or unsigned bytes, [records, size]."
        )
    if raw.dtype.kind == "u" and "scale" not in arrays:
        raise DatasetError(
            f"The embeddings in {file} are {raw.dtype}, and there is no scale to "
            "multiply them by. Add it, as one number."
        )
    scale = np.asarray(arrays.get("scale", 1.0), dtype=np.float32)
    return torch.from_numpy(with_direction(raw.astype(np.float32) * scale, file))


def with_direction(
    vectors: Float[np.ndarray, "n dim"], file: Path
) -> Float[np.ndarray, "n dim"]:
    """Return vectors, none of which is zero or not finite."""
    bad = ~np.isfinite(vectors).all(axis=1) | (vectors == 0).all(axis=1)
    if bad.any():
        raise DatasetError(
            f"Embedding {int(bad.argmax())} in {file} is all zeros or not finite, and "
            "has no direction. Compute it again, or take the record out."
        )
    return vectors


def _whole(raw: Shaped[np.ndarray, "..."], what: str, file: Path) -> Int[Tensor, " n"]:
    if raw.ndim != 1 or raw.dtype.kind not in "iu":
        raise DatasetError(
            f"The {what} in {file} are {raw.dtype} of shape {raw.shape}. Store one "
            "whole number for each record."
        )
    return torch.from_numpy(raw.astype(np.int64))


def _split(arrays: Arrays, file: Path) -> Int[Tensor, " n"] | None:
    if "split" not in arrays:
        return None
    raw = arrays["split"]
    if raw.dtype.kind not in "US":
        return _whole(raw, "split", file)
    texts = [str(text).lower() for text in raw.astype(str).ravel()]
    unknown = next((text for text in texts if text not in SPLITS), None)
    if unknown is not None:
        raise DatasetError(
            f"The split in {file} holds {unknown!r}. Use train, val and test."
        )
    return torch.tensor([SPLITS.get(text, TRAIN) for text in texts])


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
        names, each = np.unique(each.astype(str), return_inverse=True)
    if names is None:
        raise DatasetError(
            f"{file} numbers the domains, and does not name them. Add domain_names."
        )
    numbers = _whole(np.asarray(each), "domains", file)
    return numbers, tuple(readable(str(name)) for name in names.ravel())


DATASETS.register("feature-bank")(
    OnDisk(
        summary="Precomputed image embeddings, without images.",
        needs="one .npz with embeddings [n, size], labels [n] and class_names, and if "
        "you like scale, split, domains and domain_names",
        source="Write it with numpy.savez",
        read=read_feature_bank,
    )
)
