"""Capabilities of vision-language models: which can be taken, asked before any weight."""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import INSTRUCTION, PICTURE, TokenSequences
from privaudit.models.hugging_face import import_transformers, load_reader
from privaudit.models.interfaces import Tuning
from privaudit.models.vision_language.picture_reader import (
    LAYOUT,
    PictureReader,
    black_picture,
    processed,
)
from privaudit.models.vision_language.stacked_vlm import StackedVLM

TRIED = (
    *("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
    *("idefics3", "smolvlm", "paligemma", "gemma3", "internvl"),
)
"""Types that the tests hold against peft."""
_SIDE = 64
_PROCESSOR = ("tokenizer", "image_processor", "image_token")
_AGREEMENT = 1e-3
_TROUBLES = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_TOWER, _STORED = "get_image_features", "mm_encoder_outputs"
_OWN = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
)  # what is made of words, for every model alike


def check_architecture(source: str) -> Any:
    """Return a model's configuration, if its forward pass takes stored features.

    Raises:
        MissingFileError: It is not there.
        ConfigError: Its forward pass cannot be fed with stored picture features.
    """
    config = load_reader("AutoConfig", "vision-language model", source)
    known = import_transformers().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in known:
        raise refusal(source, config, "it writes no text about pictures")
    if config.is_encoder_decoder:
        raise refusal(source, config, "an encoder reads, and only a decoder writes")
    if _STORED not in _inputs(config, "forward"):
        reason = f"this transformers gives its forward pass no {_STORED}"
        raise refusal(source, config, reason)
    if not hasattr(known[type(config)], _TOWER):
        raise refusal(source, config, f"it has no method {_TOWER}")
    return config


def processor_example(source: str, config: Any, processor: Any) -> Mapping[str, Any]:
    """Return what a processor makes of one black picture and its mark in a text.

    Raises:
        ConfigError: The processor marks no pictures in a text, or makes more than
            words and what pictures alone decide.
    """
    lacking = [name for name in _PROCESSOR if getattr(processor, name, None) is None]
    if lacking:
        reason = f"what AutoProcessor finds has no {' and no '.join(lacking)}"
        raise refusal(source, config, reason)
    try:
        made = processed(processor, [black_picture(_SIDE, _SIDE)])
    except _TROUBLES as error:
        reason = f"its processor, by its files, cannot lay out a picture ({error})"
        raise refusal(source, config, reason) from error
    if LAYOUT not in made:
        reason = f"its processor gives no {LAYOUT}: where in a text a picture stands"
        raise refusal(source, config, reason)
    forward, tower = _inputs(config, "forward"), _inputs(config, _TOWER)
    required = {name for name, needed in tower.items() if needed}
    used = {*forward} & {*made, *required}
    more = used - _OWN - {*processor.image_processor.model_input_names}
    if more:
        reason = f"it takes {', '.join(sorted(more))} beside words and pictures"
        raise refusal(source, config, reason)
    if getattr(config, "image_token_id", None) is None:
        raise refusal(source, config, "its configuration has no image_token_id")
    return made


def _inputs(config: Any, method: str) -> dict[str, bool]:
    """Return what a method of an architecture takes by name, and whether it must."""
    known = import_transformers().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    found = inspect.signature(getattr(known[type(config)], method)).parameters
    _itself, *named = found.values()
    return {p.name: p.default is p.empty for p in named if p.kind != p.VAR_KEYWORD}


@contextmanager
def refusing_untried(source: str, config: Any) -> Iterator[None]:
    """Refuse an untried type that lacks what the tried ones have."""
    try:
        yield
    except _TROUBLES as error:
        if config.model_type in TRIED or isinstance(error, ConfigError):
            raise
        reason = f"it does not run on stored picture features ({error})"
        raise refusal(source, config, reason) from error


def check_stored(
    source: str, model: Any, language: StackedVLM, reader: PictureReader
) -> None:
    """Refuse an untried type unless stored features say what the picture itself says.

    Raises:
        ConfigError: The logits differ, or the model takes no stored features after all.
    """
    if model.config.model_type in TRIED:
        return
    apart = _largest_difference(model, language, reader)
    if not apart < _AGREEMENT:
        reason = f"on stored picture features its logits differ by {apart:.2g}"
        raise refusal(source, model.config, reason)


@torch.no_grad()
def _largest_difference(
    model: Any, language: StackedVLM, reader: PictureReader
) -> float:
    """Return by how much the logits of one picture differ from the model's own."""
    takes = inspect.signature(model.forward).parameters
    own = {n: t.to(model.device) for n, t in reader.example.items() if n in takes}
    own.pop("labels", None)
    ids = own["input_ids"]
    places = ids == model.config.image_token_id
    words = TokenSequences(
        ids.masked_fill(places, reader.layout(_SIDE, _SIDE).number)[None],
        torch.where(places, PICTURE, INSTRUCTION)[None],
    )
    black = torch.zeros(1, 3, _SIDE, _SIDE, dtype=torch.uint8)
    tokens = reader.encode(black)
    if tokens.shape[1] != int(places.sum()):
        return math.inf
    found = language.logits(tokens[None], words, Tuning())[0]
    return float((found - model(**own).logits).abs().max())


def refusal(source: str, config: Any, reason: str) -> ConfigError:
    """Return the error that says why a model is not taken, and which ones are."""
    return ConfigError(
        f"{source!r} is a model of type {config.model_type!r}, which vlm: does not "
        f"take: {reason}. Tried are {', '.join(TRIED)}; blip: takes BLIP-2."
    )
