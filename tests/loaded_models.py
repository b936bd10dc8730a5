"""Models loaded by name, as the class that a test needs."""

from pathlib import Path
from typing import Any

from torch import Tensor

from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.text_tower import any_text_tower
from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.registry import load_frozen


def load_clip(
    name: str = "tiny-clip", checkpoint: Path | None = None
) -> PromptableCLIP:
    model = load_frozen(name, checkpoint=checkpoint)
    assert isinstance(model, PromptableCLIP)
    return model


def spelled(model: PromptableCLIP, text: str) -> Tensor:
    """Return a text's token embeddings, without start and end token."""
    ids = model.tokenizer([text], context_length=int(model.clip.context_length))[0]
    return any_text_tower(model.clip).token_embedding(ids[1 : ids.argmax()]).detach()


def load_captioner(name: str = "tiny-llava", **options: Any) -> CaptioningVLM:
    model = load_frozen(name, **options)
    assert isinstance(model, CaptioningVLM)
    return model
