"""Every family of vision-language models: trained, attacked, and held against peft.

Run by ``make bench``; prints the table of docs/vision-language.md. The models are as small
as those of the tests, at random weights: the seconds say what the program costs
around a model, and nothing about a real one.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.scenario import find_scenario
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.records import PADDING, PICTURE
from privaudit.models.registry import load_frozen
from privaudit.models.vision_language.vlm import VisionLanguageModel
from tests.privaudit.models.vision_language.test_vlm_rounds import TINY
from tests.small_records import ragged_data
from tests.small_transformers import draw, pair_shapes, some_lora
from tests.small_vlms import FAMILIES, logits_of_peft, save_vlm, without_frames

TRAINERS = ("fedrand", "lora-fedavg")
ALL_LAYERS: dict[str, Any] = {**TINY, "targets": "all-linear"}


@pytest.fixture(autouse=True)
def stand_ins() -> Iterator[None]:
    DATASETS.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS._entries, "some-pictures", lambda: ragged_data(24))
        without_frames(patch)
        yield


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
def test_families(tmp_path: Path) -> None:
    print(
        "\n| type | parameters | tokens of pictures | loads, s | "
        + " | ".join(f"`{trainer}`, s | attacked, s" for trainer in TRAINERS)
        + " | largest difference from peft |"
    )
    print("|---" * (5 + 2 * len(TRAINERS)) + "|")
    for family in FAMILIES:
        folder = tmp_path / family
        name = save_vlm(folder, family)
        start = process_time()
        model = load_frozen(name)
        took = [process_time() - start]
        assert isinstance(model, VisionLanguageModel)
        for trainer in TRAINERS:
            took += _round(trainer, name, folder / trainer)
        parameters = sum(p.numel() for p in model.language.model.parameters())
        parts, apart = _against_peft(family, folder, model)
        seconds = " | ".join(f"{each:.1f}" for each in took)
        print(f"| `{family}` | {parameters:,} | {parts} | {seconds} | {apart:.1e} |")
        assert apart < 1e-4


def _round(trainer: str, model: str, folder: Path) -> list[float]:
    """Return how long a round and an attack on it took."""
    start = process_time()
    run = train(trainer, folder=folder, model=model, **ALL_LAYERS)
    between = process_time()
    whole = find_scenario("server-reconstruct", 0)
    attacks = {name: whole.attacks[name] for name in ("token-loss", "max-renyi")}
    Auditor(run).attack(replace(whole, attacks=attacks, dominates=()), clients=1)
    return [between - start, process_time() - between]


def _against_peft(
    family: str, folder: Path, model: VisionLanguageModel
) -> tuple[str, float]:
    """Return the pictures' numbers of tokens, and the largest difference of a logit."""
    records = model.read(ragged_data(3))
    assert records.words is not None
    assert records.tokens is not None
    pairs = draw(pair_shapes(model.language, 1))
    tuned = some_lora(model.language, pairs)
    with torch.no_grad():
        found = model.language.logits(
            records.tokens[None].read(), records.words.repeated(1), tuned
        )[0]
    theirs = logits_of_peft(family, folder, model, records, pairs)
    kinds = records.words.kinds
    apart = [
        float((found[row][kinds[row] != PADDING] - expected).abs().max())
        for row, expected in enumerate(theirs)
    ]
    parts = (kinds == PICTURE).sum(dim=1).tolist()
    return ", ".join(map(str, parts)), max(apart)
