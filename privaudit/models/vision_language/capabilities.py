"""Which vision-language models can be taken, asked before any weight is read."""

import inspect
from collections.abc import Mapping
from typing import Any

from privaudit.core.errors import ConfigError
from privaudit.models.hugging_face import import_transformers, load_reader
from privaudit.models.vision_language.picture_reader import black_picture, processed

TRIED = (
    *("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
    *("idefics3", "smolvlm", "paligemma", "gemma3", "internvl"),
)
"""Types that the tests hold against peft."""
_SIDE = 64
_STORED = "mm_encoder_outputs"
_OWN = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
)  # what is made of words, for every model alike


def check_architecture(source: str) -> Any:
    """Refuse a model whose forward pass cannot be fed with stored picture features.

    Returns:
        Its configuration.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It is no such model.
    """
    config = load_reader("AutoConfig", "vision-language model", source)
    known = import_transformers().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in known:
        raise refusal(source, config, "it writes no text about pictures")
    if config.is_encoder_decoder:
        raise refusal(source, config, "an encoder reads, and only a decoder writes")
    if _STORED not in inspect.signature(known[type(config)].forward).parameters:
        reason = f"this transformers gives its forward pass no {_STORED}"
        raise refusal(source, config, reason)
    return config


def processor_example(source: str, config: Any, processor: Any) -> Mapping[str, Any]:
    """Return what a processor makes of one black picture and its mark in a text.

    Raises:
        ConfigError: The processor marks no pictures in a text, or makes more than
            words and what pictures alone decide.
    """
    if getattr(processor, "image_token", None) is None:
        raise refusal(source, config, "its processor has no mark for a picture")
    made = processed(processor, [black_picture(_SIDE, _SIDE)])
    known = import_transformers().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    takes = inspect.signature(known[type(config)].forward).parameters
    of_pictures = processor.image_processor.model_input_names
    more = [
        name
        for name in made
        if name in takes and name not in _OWN and name not in of_pictures
    ]
    if more:
        reason = f"it takes {', '.join(more)} beside words and pictures"
        raise refusal(source, config, reason)
    return made


def refusal(source: str, config: Any, reason: str) -> ConfigError:
    """Return the error that says why a model is not taken, and which ones are."""
    return ConfigError(
        f"{source!r} is a model of type {config.model_type!r}, which vlm: does not "
        f"take: {reason}. Tried are {', '.join(TRIED)}; blip: takes BLIP-2."
    )
