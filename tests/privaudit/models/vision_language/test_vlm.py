"""Each family against transformers' own processor and peft's own model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.datasets.dialogues import ANSWER, PADDING, PICTURE
from privaudit.federated.query import questions
from privaudit.models.interfaces import Tuning
from privaudit.models.registry import load_frozen
from privaudit.models.vision_language.vlm import VisionLanguageModel
from tests.small_records import RaggedPictures, ragged_data
from tests.small_transformers import (
    draw,
    pair_shapes,
    some_lora,
)
from tests.small_vlms import FAMILIES, save_vlm
from tests.vlm_oracle import logits_of_peft, own_inputs, own_processor

DATA = ragged_data(3)
PICTURES, DIALOGUES = RaggedPictures(3), DATA.dialogues
OF_NUMPY = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(family)
    save_vlm(folder, family)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> VisionLanguageModel:
    model = load_frozen(f"vlm:{folder}")
    assert isinstance(model, VisionLanguageModel)
    return model


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return own_processor(folder)


@OF_NUMPY
def test_words_are_those_of_the_familys_own_processor(
    family: str, model: VisionLanguageModel, processor: Any
) -> None:
    words = model.read(DATA).words
    assert words is not None
    image = model.language.model.config.image_token_id
    for row in range(len(DATA)):
        ids, kinds = words.ids[row], words.kinds[row]
        prompt = (kinds != PADDING) & (kinds != ANSWER)
        own = own_inputs(family, processor, PICTURES[row], DIALOGUES[row])["input_ids"][
            0
        ]
        assert torch.equal(ids.masked_fill(kinds == PICTURE, image)[prompt], own)
        said = model.language.decode(ids[kinds == ANSWER].tolist())
        assert said == DIALOGUES[row].answers[0]


@OF_NUMPY
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_logits_are_those_of_pefts_own_model(
    family: str, model: VisionLanguageModel, folder: Path
) -> None:
    records = model.read(DATA)
    assert records.words is not None
    assert records.tokens is not None
    pairs = draw(pair_shapes(model.language, 2))
    tokens = records.tokens[None].read().expand(2, -1, -1, -1)
    words = records.words.repeated(2)
    found = model.language.logits(tokens, words, some_lora(model.language, pairs))
    theirs = logits_of_peft(family, folder, model, records, pairs)
    for row, expected in enumerate(theirs):
        real = records.words.kinds[row] != PADDING
        assert torch.allclose(found[0, row][real], expected, atol=1e-4)
    second = some_lora(model.language, {name: t[1:] for name, t in pairs.items()})
    alone = model.language.logits(tokens[1:], words[1:2], second)[0]
    assert torch.allclose(found[1], alone, atol=2e-5)
    assert not torch.allclose(found[0], found[1], atol=0.01)
    untuned = model.language.logits(tokens, words, Tuning())
    assert not torch.allclose(found[0], untuned[0], atol=0.01)


@OF_NUMPY
def test_answers_are_those_that_the_model_generates(
    family: str, model: VisionLanguageModel, processor: Any
) -> None:
    records = model.read(DATA)
    assert records.words is not None
    assert records.tokens is not None
    pairs = draw(pair_shapes(model.language, 2))
    pairs = {n: torch.cat([t[:1], 0 * t[1:]]) for n, t in pairs.items()}
    said = model.language.generate_ids(
        records.tokens[None].read().expand(2, -1, -1, -1),
        questions(records.words).repeated(2),
        some_lora(model.language, pairs),
        5,
    )
    original = model.language.model
    for row in range(len(DATA)):
        own = own_inputs(family, processor, PICTURES[row], DIALOGUES[row])
        own.pop("labels", None)
        found = original.generate(**own, max_new_tokens=5, do_sample=False)
        assert said[1][row] == found[0, own["input_ids"].shape[1] :].tolist()
    # Random weights whose head is the embedding say one word again and again.
    assert said[0] != said[1] or family == "paligemma"
