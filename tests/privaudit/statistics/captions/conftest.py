import json
from typing import Any

import numpy as np
import pytest

from privaudit.statistics.captions.scores import Corpus
from tests.golden import golden as read_golden
from tests.places import SHARED

TEXTS = SHARED / "data/caption_metric_golden"


def words(*captions: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(caption.split()) for caption in captions)


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """BLEU, ROUGE-L, CIDEr and CIDEr-D of coco-caption and pycocoevalcap."""
    return read_golden("captions")


@pytest.fixture(scope="session", params=[0, 1, 2])
def case(request: pytest.FixtureRequest) -> tuple[Corpus, dict[str, np.ndarray]]:
    """A corpus whose captions are words already, and what its metrics should be."""
    found = read_golden("captions", f"c{request.param}_")
    candidates = words(*map(str, found["cands"]))
    return Corpus(candidates, tuple(words(*one) for one in references_of(found))), found


def references_of(found: dict[str, np.ndarray]) -> list[list[str]]:
    """Return each image's references, as they are written."""
    references: list[list[str]] = [[] for _ in found["cands"]]
    for text, image in zip(found["refs"], found["ref_image"], strict=True):
        references[image].append(str(text))
    return references


def read_text(name: str) -> Any:
    """Return the lines or the JSON of a text whose metrics were published."""
    path = TEXTS / name
    if not path.exists():
        pytest.skip(f"needs reference data, not in the repository: {TEXTS.name}")
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else text.strip().splitlines()
