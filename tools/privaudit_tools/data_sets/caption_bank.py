"""Embeddings that were made elsewhere, with a caption of each: for models of ``language:``."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import TypeAdapter
from torch import Tensor

from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.images.feature_bank import MAPPED, as_vectors, read_arrays, take
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import OnDisk
from privaudit.datasets.text.question_texts import DESCRIBE
from privaudit.statistics.captions.scores import tokenise

CAPTIONS, ALL_CAPTIONS = "captions.json", "flickr8k_captions_all.txt"
TEXTS = TypeAdapter(list[str])
CLUSTERS = 8


def read_caption_bank(
    path: Path, clusters: int = CLUSTERS, question: str = DESCRIBE
) -> Dataset:
    """Read vectors and a caption of each; there are no pictures.

    The classes are not people's: they are ``clusters`` groups of the vectors, or fewer
    where fewer differ, found by k-means with a fixed seed, and named by the words that
    set their captions apart.

    Where the list of all captions of Flickr8k lies beside them, a record has all of its
    picture's as references: the picture is the one that has the record's caption. The
    own caption is the first, and the only one if several pictures have it.
    """
    file = _find_vectors(path)
    vectors = as_vectors(take(read_arrays(file), "embeddings", file, file.stem), file)
    captions = [text.strip() for text in read_checked(path / CAPTIONS, TEXTS)]
    if len(captions) != len(vectors):
        raise DatasetError(
            f"{path} holds {len(vectors)} vectors and {len(captions)} captions. Give "
            "one caption for each vector, in the same order."
        )
    if "" in captions:
        raise DatasetError(
            f"Caption {captions.index('')} in {path / CAPTIONS} is blank. Write it, or "
            "take it out together with its vector."
        )
    labels = _cluster(vectors, clusters)
    others = _references(path / ALL_CAPTIONS, captions)
    return Dataset(
        FeatureBank(torch.from_numpy(vectors)),
        labels,
        _name_clusters(labels, captions),
        dialogues=tuple(
            Dialogue(question, (caption, *rest))
            for caption, rest in zip(captions, others, strict=True)
        ),
    )


CAPTION_BANK = OnDisk(
    summary="Captions, and precomputed image embeddings.",
    needs="one .npy with vectors [n, size], or one .npz or .safetensors with "
    "embeddings, and "
    "captions.json with a list of n captions; optionally "
    "flickr8k_captions_all.txt, with all captions of each image",
    source="Write the vectors with numpy.save and the captions with json.dump",
    read=read_caption_bank,
)


def _find_vectors(path: Path) -> Path:
    files = [f for f in sorted(path.glob("*")) if f.suffix in (".npz", *MAPPED)]
    if not files:
        raise MissingFileError(
            f"There is no .npy, .npz or .safetensors in {path}. Put one there."
        )
    if len(files) > 1:
        raise DatasetError(
            f"{path} holds {', '.join(file.name for file in files)}. Leave the one "
            f"whose captions are in {CAPTIONS}."
        )
    return files[0]


def _cluster(vectors: Float[np.ndarray, "n dim"], clusters: int) -> Int[Tensor, " n"]:
    """Return each vector's group by direction, numbered from 0 without gaps."""
    from sklearn.cluster import KMeans

    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    count = min(clusters, len(np.unique(exact, axis=0)))
    assignments = KMeans(count, n_init=10, random_state=0).fit(exact).labels_
    return torch.from_numpy(
        np.unique(assignments, return_inverse=True)[1].astype(np.int64)
    )


def _name_clusters(
    labels: Int[Tensor, " n"], captions: Sequence[str]
) -> tuple[str, ...]:
    """Return each group's number and the two words most its own.

    Those are the words whose share of the group's captions is farthest above their
    share of all captions.
    """
    words = [set(tokenise(caption)) for caption in captions]
    everywhere = Counter(word for caption in words for word in caption)
    names = []
    for label in range(int(labels.max()) + 1):
        cluster_words = [
            words[i] for i in (labels == label).nonzero().flatten().tolist()
        ]
        counts = Counter(word for caption in cluster_words for word in caption)
        beyond = {
            word: count / len(cluster_words) - everywhere[word] / len(words)
            for word, count in counts.items()
        }
        typical = sorted(beyond, key=lambda word: (-beyond[word], word))[:2]
        names.append(f"group {label + 1}: {', '.join(typical) or 'no words'}")
    return tuple(names)


def _references(file: Path, captions: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the other captions of each caption's picture, where they are known."""
    if not file.exists():
        return [()] * len(captions)
    text = io.StringIO(read_bytes(file).decode(errors="replace"))
    try:
        rows = [row for row in csv.reader(text, strict=True) if row]
    except csv.Error as error:
        raise DatasetError(
            f"{file} is no list of commas: {error}. A caption with a quotation mark has "
            "it twice, between two more. Get it again."
        ) from None
    pictures: dict[str, list[str]] = {}
    holders: dict[str, set[str]] = {}
    for row in rows[1:]:
        if len(row) != 2:
            raise DatasetError(
                f"{file} has the line {row}. Each is a picture and a caption, behind "
                "a comma. Get it again."
            )
        picture, caption = row[0], row[1].strip()
        pictures.setdefault(picture, []).append(caption)
        holders.setdefault(caption, set()).add(picture)
    others = []
    for caption in captions:
        alone = holders.get(caption, set())
        whole = pictures[next(iter(alone))] if len(alone) == 1 else []
        others.append(tuple(text for text in whole if text and text != caption))
    return others
