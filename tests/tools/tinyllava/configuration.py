# mypy: disable-error-code="no-untyped-call"
"""What config.json of a TinyLLaVA holds: one part for words, and one for pictures."""

from typing import Any

from transformers import CLIPVisionConfig, PretrainedConfig


class ElmConfig(PretrainedConfig):
    """Of an OpenELM: layers differ in their heads and in their widths."""

    model_type = "openelm"


class TinyLlavaConfig(PretrainedConfig):
    """Of the whole."""

    model_type = "tinyllava"

    def __init__(
        self,
        text_config: dict[str, Any] | None = None,
        vision_config: dict[str, Any] | None = None,
        **entries: Any,
    ) -> None:
        self.text_config = ElmConfig(**(text_config or {}))
        self.vision_config = CLIPVisionConfig(**(vision_config or {}))
        super().__init__(**entries)
