"""What a vision-language model's own processor, and peft around it, make of records."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from privaudit.datasets.dialogues import ANSWER, Dialogue
from privaudit.datasets.records import Records
from privaudit.models.hugging_face import import_transformers
from privaudit.models.vision_language.vlm import VisionLanguageModel
from tests.small_records import RaggedPictures
from tests.small_transformers import with_lora_of_peft


def own_processor(folder: Path) -> Any:
    """Return the processor that is saved in a folder."""
    return import_transformers().AutoProcessor.from_pretrained(folder)


def own_inputs(family: str, processor: Any, picture: Tensor, dialogue: Dialogue) -> Any:
    """Return what the family's own processor makes of one question."""
    asked = [{"type": "image"}, {"type": "text", "text": dialogue.question}]
    text = f"{processor.image_token}{dialogue.question}"
    if family != "paligemma":
        text = processor.apply_chat_template(
            [{"role": "user", "content": asked}], add_generation_prompt=True
        )
    seen = Image.fromarray(picture.permute(1, 2, 0).numpy())
    begins = {"add_special_tokens": False} if text.startswith("<bos>") else {}
    return processor(text=[text], images=[[seen]], return_tensors="pt", **begins)


def with_answer(
    family: str, inputs: Mapping[str, Any], answer: Tensor
) -> dict[str, Any]:
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


@torch.no_grad()
def logits_of_peft(
    family: str,
    folder: Path,
    model: VisionLanguageModel,
    records: Records,
    pairs: Mapping[str, Tensor],
) -> list[Tensor]:
    """Return each ragged picture's logits by peft's own model, with its image tower."""
    kind = import_transformers().AutoModelForImageTextToText
    original = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    peft = with_lora_of_peft(original, model.language, pairs)
    processor, pictures = own_processor(folder), RaggedPictures(len(records))
    assert records.words is not None
    found = []
    for row, dialogue in enumerate(records.dialogues):
        answer = records.words.ids[row][records.words.kinds[row] == ANSWER]
        own = own_inputs(family, processor, pictures[row], dialogue)
        found.append(peft(**with_answer(family, own, answer)).logits[0])
    return found
