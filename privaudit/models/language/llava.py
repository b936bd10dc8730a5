"""LLaVA, TinyLLaVA and BLIP-2: image tower, projector, any language model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privaudit.models.clip.picture_preparation import ProcessorPreparation
from privaudit.models.frozen_model import weights_hash
from privaudit.models.hugging_face import check_type, load_model, load_reader
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import (
    LLAVA_TEMPLATE,
    DialogueTokens,
    PictureFirstTokens,
    SeparateTokens,
    chat_template,
)
from privaudit.models.language.language_targets import name_of
from privaudit.models.language.stacked_language import (
    StackedLanguageModel,
    StackedSeq2Seq,
)
from privaudit.models.registry import ModelRequest

_BLIP_TEMPLATE = "{image}Question: {question} Answer:"


def load_llava(request: ModelRequest) -> CaptioningVLM:
    """Load a LLaVA, frozen; code that comes with it runs only where it is trusted.

    The prompt is of the request's template, else of the model's own chat template, or
    LLaVA 1.5's where it has none.
    """
    source = request.source
    if check_type(source, "llava:", "llava", "tinyllava") == "tinyllava":
        return _load_tinyllava(request)
    processor = load_reader("AutoProcessor", "model", source)
    mark, tokenizer = processor.image_token, processor.tokenizer
    prompt = chat_template(processor, LLAVA_TEMPLATE, mark, request.template)
    where = request.device, request.dtype, request.bits
    model = load_model("LlavaForConditionalGeneration", "model", source, *where)

    @torch.no_grad()
    def encode(pictures: Tensor) -> Tensor:
        output = model.get_image_features(pictures.to(model.dtype), return_dict=True)
        return torch.stack(list(output.pooler_output))

    settings = processor.image_processor
    encoder = _picture_tower(model, settings, encode, description=_layers(model))
    part = str(name_of(model, model.model.language_model))
    language = StackedLanguageModel(model, tokenizer, request.targets, part)
    words = DialogueTokens(tokenizer, prompt, encoder.parts, language.context, mark)
    return CaptioningVLM(request.name, encoder, language, words, weights_hash(model))


def _load_tinyllava(request: ModelRequest) -> CaptioningVLM:
    """Load a TinyLLaVA, which consists of its own code.

    A picture is no token of its tokenizer; the prompt is of the request's template, or
    LLaVA 1.5's.

    Source: Jia et al., "TinyLLaVA Factory", 2024, whose layout of a repository this is.
    """
    source, template = request.source, request.template
    where = request.device, request.dtype, request.bits
    model = load_model("AutoModelForCausalLM", "model", source, *where)
    tokenizer = load_reader("AutoTokenizer", "tokenizer", source)
    if template is not None:
        template = chat_template(tokenizer, image="<image>", template=template)

    @torch.no_grad()
    def encode(pictures: Tensor) -> Tensor:
        return model.encode_images(pictures)

    settings = model.vision_tower._image_processor
    encoder = _picture_tower(model, settings, encode, description=_layers(model))
    language = StackedLanguageModel(model.language_model, tokenizer, request.targets)
    prompt = template or LLAVA_TEMPLATE
    words = DialogueTokens(tokenizer, prompt, encoder.parts, language.context)
    return CaptioningVLM(request.name, encoder, language, words, weights_hash(model))


def load_blip(request: ModelRequest) -> CaptioningVLM:
    """Load a BLIP-2, whose language model, of any kind, is what is tuned.

    The query tokens' transformer does not see the question, so a picture's tokens are
    computed once, as for LLaVA.
    """
    kind, source = "Blip2ForConditionalGeneration", request.source
    check_type(source, "blip:", "blip-2")
    where = request.device, request.dtype, request.bits
    model = load_model(kind, "BLIP-2", source, *where)
    processor = load_reader("AutoImageProcessor", "image processor", source)
    tokenizer = load_reader("AutoTokenizer", "tokenizer", source)

    @torch.no_grad()
    def encode(pictures: Tensor) -> Tensor:
        return model.get_image_features(pictures, return_dict=True).pooler_output

    parts = int(model.config.num_query_tokens)
    encoder = _picture_tower(model, processor, encode, parts)
    inner = model.language_model
    separate = bool(inner.config.is_encoder_decoder)
    stacked = StackedSeq2Seq if separate else StackedLanguageModel
    language = stacked(inner, tokenizer, request.targets)
    writing = SeparateTokens if separate else PictureFirstTokens
    words = writing(tokenizer, _BLIP_TEMPLATE, encoder.parts, language.context)
    return CaptioningVLM(request.name, encoder, language, words, weights_hash(model))


def _layers(model: Any) -> str:
    """Return which of the image tower's outputs are a picture's tokens."""
    layer = model.config.vision_feature_layer
    return f"{(layer, model.config.vision_feature_select_strategy)} "


def _picture_tower(
    model: Any,
    processor: Any,
    encode: Callable[[Tensor], Tensor],
    parts: int | None = None,
    description: str = "",
) -> PictureTower:
    """Return the image tower; how many tokens it makes is tried where nothing says it."""
    prepare = ProcessorPreparation(processor)
    size = int(model.config.vision_config.image_size)
    example = prepare.example(size)
    if parts is None:
        parts = encode(example.to(model.device)).shape[1]
    settings = description + processor.to_json_string()
    return PictureTower(encode, prepare, size, parts, settings)
