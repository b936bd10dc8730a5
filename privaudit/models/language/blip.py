"""BLIP-2 of transformers: image tower, query tokens, any language model behind them."""

from typing import Any

import torch
from torch import Tensor

from privaudit.models.frozen_model import weights_hash
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.llava import ProcessorPreparation
from privaudit.models.language.separate_tokens import PictureFirstTokens, SeparateTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.language.stacked_seq2seq import StackedSeq2Seq

_TEMPLATE = "{image}Question: {question} Answer:"


def load_blip(
    name: str, model: Any, processor: Any, tokenizer: Any, targets: TargetNames
) -> CaptioningVLM:
    """Return a BLIP-2 as a captioning model: its language model is what is tuned.

    The query tokens' transformer does not see the question, so a picture's tokens are
    computed once, as for LLaVA.

    Args:
        name: As ``--model`` takes it.
        model: ``Blip2ForConditionalGeneration``, frozen.
        processor: Its image processor.
        tokenizer: Its tokenizer.
        targets: The language model's layers that may be changed.

    Raises:
        ConfigError: The processor makes pictures of another size than the model takes,
            or a target fits no layer.
    """
    eye = _picture_tower(model, processor)
    inner = model.language_model
    separate = bool(inner.config.is_encoder_decoder)
    stacked = StackedSeq2Seq if separate else StackedLanguageModel
    language = stacked(inner, tokenizer, targets)
    writing = SeparateTokens if separate else PictureFirstTokens
    words = writing(tokenizer, _TEMPLATE, eye.parts, language.context)
    return CaptioningVLM(name, eye, language, words, weights_hash(model))


def _picture_tower(model: Any, processor: Any) -> PictureTower:
    prepare = ProcessorPreparation(processor)
    size = int(model.config.vision_config.image_size)
    prepare.example(size)

    @torch.no_grad()
    def encode(pictures: Tensor) -> Tensor:
        return model.get_image_features(pictures, return_dict=True).pooler_output

    parts = int(model.config.num_query_tokens)
    return PictureTower(encode, prepare, size, parts, processor.to_json_string())
