"""Names of the transformers that trainers tune, and what each kind does."""

from typing import Literal

CLASSIFYING = (
    "encoder:FOLDER_OR_HUB_NAME",
    "vit:FOLDER_OR_HUB_NAME",
    "clip:FOLDER_OR_HUB_NAME",
)
"""They tell classes apart: of texts (encoder) or of pictures."""
WRITING = (
    "decoder:FOLDER_OR_HUB_NAME",
    "seq2seq:FOLDER_OR_HUB_NAME",
    "blip:FOLDER_OR_HUB_NAME",
)
"""They answer in words: about texts, or about pictures (blip)."""
READING = ("encoder", "decoder", "seq2seq")
"""The kinds that read texts and look at no pictures."""


def kind_of(name: str) -> Literal["classifies", "writes"] | None:
    """Say what a model does of which the name has such a kind; else None."""
    kind, colon, _ = name.partition(":")
    if not colon:
        return None
    if any(known.startswith(f"{kind}:") for known in CLASSIFYING):
        return "classifies"
    return "writes" if any(k.startswith(f"{kind}:") for k in WRITING) else None


def reads_texts(name: str) -> bool:
    """Say whether a model reads texts in place of pictures."""
    return kind_of(name) is not None and name.partition(":")[0] in READING
