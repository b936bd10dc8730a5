"""Each family against transformers' own processor and peft's own model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from privaudit.datasets.dataset import Dataset
from privaudit.datasets.dialogues import ANSWER, PADDING, PICTURE, Dialogue
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
from tests.small_vlms import FAMILIES, save_vlm

SIZES = ((20, 40), (16, 16), (40, 18))
DIALOGUES = (
    Dialogue("what is it?", ("a red square",)),
    Dialogue("what is it?", ("yes",)),
    Dialogue("who is this?", ("a blue circle and a red square",)),
)


class SomePictures:
    """Pictures of different sizes."""

    digest = "some"
    contents = (b"0", b"1", b"2")

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pictures = [
            torch.randint(0, 256, (3, *size), generator=generator).to(torch.uint8)
            for size in SIZES
        ]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        return self.pictures[index]


PICTURES = SomePictures()
DATA = Dataset(PICTURES, torch.tensor([0, 1, 2]), ("a", "b", "c"), dialogues=DIALOGUES)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def without_videos() -> Iterator[None]:
    """Let SmolVLM's processor do without the package that it names frames with."""
    import_transformers()
    from transformers.models.smolvlm import processing_smolvlm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing_smolvlm, "num2words", str)
        yield


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


OF_NUMPY = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")


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
