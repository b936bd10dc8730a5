"""Each family against transformers' own processor and peft's own model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from privaudit.datasets.dialogues import ANSWER, PADDING, PICTURE
from privaudit.federated.writing import questions
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.registry import load_frozen
from privaudit.models.vision_language.vlm import VisionLanguageModel
from tests.small_transformers import (
    draw,
    pair_shapes,
    some_lora,
    with_lora_of_peft,
)
from tests.small_vlms import FAMILIES, RaggedPictures, ragged_data, save_vlm

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
    return import_transformers().AutoProcessor.from_pretrained(folder)


def own_inputs(family: str, processor: Any, row: int) -> Any:
    """Return what the family's own processor makes of one question."""
    asked = [{"type": "image"}, {"type": "text", "text": DIALOGUES[row].question}]
    text = f"{processor.image_token}{DIALOGUES[row].question}"
    if family != "paligemma":
        text = processor.apply_chat_template(
            [{"role": "user", "content": asked}], add_generation_prompt=True
        )
    picture = Image.fromarray(PICTURES[row].permute(1, 2, 0).numpy())
    begins = {"add_special_tokens": False} if text.startswith("<bos>") else {}
    return processor(text=[text], images=[[picture]], return_tensors="pt", **begins)


def with_answer(family: str, inputs: Any, answer: Tensor) -> dict[str, Any]:
    """Put an answer behind a prompt, as the family is trained."""
    longer = dict(inputs)
    of_answer = {
        "input_ids": answer,
        "attention_mask": torch.ones_like(answer),
        "token_type_ids": torch.full_like(answer, int(family == "paligemma")),
        "mm_token_type_ids": torch.zeros_like(answer),
    }
    for name, more in of_answer.items():
        if name in longer:
            longer[name] = torch.cat([longer[name], more[None]], dim=1)
    longer.pop("labels", None)
    return longer


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
        own = own_inputs(family, processor, row)["input_ids"][0]
        assert torch.equal(ids.masked_fill(kinds == PICTURE, image)[prompt], own)
        said = model.language.decode(ids[kinds == ANSWER].tolist())
        assert said == DIALOGUES[row].answers[0]


@OF_NUMPY
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_logits_are_those_of_pefts_own_model(
    family: str, model: VisionLanguageModel, processor: Any, folder: Path
) -> None:
    records = model.read(DATA)
    assert records.words is not None
    assert records.tokens is not None
    pairs = draw(pair_shapes(model.language, 2))
    tokens = records.tokens.expand(2, *records.tokens.shape)
    words = records.words.repeated(2)
    found = model.language.logits(tokens, words, some_lora(model.language, pairs))
    original = import_transformers().AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    peft = with_lora_of_peft(original, model.language, pairs)
    for row in range(len(DATA)):
        kinds = records.words.kinds[row]
        answer = records.words.ids[row][kinds == ANSWER]
        own = with_answer(family, own_inputs(family, processor, row), answer)
        with torch.no_grad():
            expected = peft(**own).logits[0]
        assert torch.allclose(found[0, row][kinds != PADDING], expected, atol=1e-4)
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
        records.tokens.expand(2, *records.tokens.shape),
        questions(records.words).repeated(2),
        some_lora(model.language, pairs),
        5,
    )
    original = model.language.model
    for row in range(len(DATA)):
        own = own_inputs(family, processor, row)
        own.pop("labels", None)
        found = original.generate(**own, max_new_tokens=5, do_sample=False)
        assert said[1][row] == found[0, own["input_ids"].shape[1] :].tolist()
    # Random weights whose head is the embedding say one word again and again.
    assert said[0] != said[1] or family == "paligemma"
