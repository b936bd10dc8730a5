"""Models loaded by name, as the class that a test needs."""

from pathlib import Path
from typing import Any

from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.registry import load_frozen


def load_clip(
    name: str = "tiny-clip", checkpoint: Path | None = None
) -> PromptableCLIP:
    model = load_frozen(name, checkpoint=checkpoint)
    assert isinstance(model, PromptableCLIP)
    return model


def load_captioner(name: str = "tiny-llava", **options: Any) -> CaptioningVLM:
    model = load_frozen(name, **options)
    assert isinstance(model, CaptioningVLM)
    return model
