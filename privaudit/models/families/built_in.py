"""The families that come with privaudit, each with the function that loads its models.

The function's module is imported as a model is loaded: to look up one family, or to list
all of them, imports no model.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from privaudit.models.frozen_model import FrozenModel
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest

_classifies = partial(ModelFamily, "classification", sources=FOLDER_OR_HUB)
_writes = partial(ModelFamily, "generation", sources=FOLDER_OR_HUB, packs=True)


def _by(module: str, function: str) -> Callable[[ModelRequest], FrozenModel]:
    """Return what imports a module of ``privaudit.models``, and calls its function."""

    def load(request: ModelRequest) -> FrozenModel:
        loader: Any = getattr(import_module(f"privaudit.models.{module}"), function)
        return loader(request)

    return load


FAMILIES = {
    # BLIP-2 of transformers.
    "blip": _writes(_by("language.llava", "load_blip")),
    # CLIPs and SigLIPs of transformers: their prompts are learned, or their image tower.
    "clip": _classifies(
        _by("transformers.picture_classifier", "load_clip"), prompted=True
    ),
    # Causal language models of transformers, such as LLaMA, without pictures.
    "decoder": _writes(
        _by("transformers.text_writer", "load_decoder"),
        records="texts",
        takes_template=True,
    ),
    # Encoders of texts of transformers, such as BERT, under a head for the classes.
    "encoder": _classifies(
        _by("transformers.text_classifier", "load_encoder"), records="texts", packs=True
    ),
    # LLaVAs of transformers, and TinyLLaVAs, whose code comes with them.
    "llava": _writes(_by("language.llava", "load_llava"), takes_template=True),
    # Encoder-decoders of transformers, such as T5, without pictures.
    "seq2seq": _writes(
        _by("transformers.text_writer", "load_seq2seq"), records="texts"
    ),
    # The CLIP that comes with the package.
    "tiny-clip": ModelFamily(
        "classification", _by("tiny_clip.loading", "load_tiny_clip"), tuned=False
    ),
    # The captioning model that comes with the package.
    "tiny-llava": ModelFamily(
        "generation", _by("tiny_llava.loading", "load_tiny_llava")
    ),
    # Image towers of transformers, such as ViT and DINOv2, under a head for the classes.
    "vit": _classifies(_by("transformers.picture_classifier", "load_vit")),
    # Vision-language models of transformers: LLaVA, Qwen-VL, Gemma 3, and so on.
    "vlm": _writes(_by("vision_language.vlm", "load_vlm"), takes_template=True),
}
for _kind, _family in FAMILIES.items():
    MODELS.register(_kind)(_family)
