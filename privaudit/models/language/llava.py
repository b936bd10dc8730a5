"""LLaVA models of transformers: image tower, projector, any causal language model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import Pictures, as_rgb
from privaudit.models.foreign_folder import check_folder
from privaudit.models.frozen_model import weights_hash
from privaudit.models.hugging_face import (
    check_model,
    import_transformers,
    loading_errors,
)
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import LLAVA_TEMPLATE, DialogueTokens
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.stacked_language import StackedLanguageModel

Precision = Literal["float32", "bfloat16"]
_QUESTION = "QUESTION-GOES-HERE"


def load_llava(
    source: str,
    *,
    device: str = "cpu",
    precision: Precision = "float32",
    targets: TargetNames = "all-linear",
    template: str | None = None,
) -> CaptioningVLM:
    """Load a LLaVA, frozen; code that comes with it is not run.

    Args:
        source: A folder, or a name on the hub.
        device: Where it runs.
        precision: Of weights; half of the memory in "bfloat16".
        targets: The language model's layers that may be changed.
        template: The prompt, with {image} and {question}; None takes the model's own
            chat template, or LLaVA 1.5's where it has none.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It is no LLaVA, needs code of its own, has no safetensors weights,
            or no layer fits ``targets``.
    """
    model, processor = _read(source, getattr(torch, precision))
    model = model.to(device).eval().requires_grad_(False)
    eye = _picture_tower(model, processor.image_processor)
    language = StackedLanguageModel(
        model, processor.tokenizer, targets, _language_part(model)
    )
    words = DialogueTokens(
        processor.tokenizer,
        template or chat_template(processor),
        eye.parts,
        language.context,
        processor.image_token,
    )
    return CaptioningVLM(f"llava:{source}", eye, language, words, weights_hash(model))


def chat_template(processor: Any) -> str:
    """Return the prompt that a processor's chat template writes around a question.

    The places are {image} and {question}; without a chat template it is LLaVA 1.5's.
    """
    if not getattr(processor, "chat_template", None):
        return LLAVA_TEMPLATE
    content = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
    written: str = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=False,
    )
    written = written.replace(processor.image_token, "{image}", 1)
    return written.replace(_QUESTION, "{question}", 1)


@dataclass(frozen=True)
class ProcessorPreparation:
    """Prepares pictures as the model's own image processor does."""

    processor: Any

    def __call__(self, pictures: Pictures) -> Float[Tensor, "n 3 height width"]:
        """Prepare a batch of pictures of one size."""
        # In floats, resizing would overshoot black and white; in bytes it cannot.
        in_bytes = (as_rgb(pictures) * 255).round().to(torch.uint8)
        made = self.processor(
            images=list(in_bytes),
            return_tensors="pt",
            input_data_format="channels_first",
        )
        return made["pixel_values"].float()

    def example(self, size: int) -> Float[Tensor, "1 3 size size"]:
        """Return a black picture, prepared."""
        made = self(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        if tuple(made.shape[2:]) != (size, size):
            raise ConfigError(
                f"The image processor makes pictures of {tuple(made.shape[2:])} "
                f"pixels, and the image tower takes {size} x {size}. Mend "
                "preprocessor_config.json."
            )
        return made


def _read(source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    transformers, kind = import_transformers(), "LlavaForConditionalGeneration"
    with loading_errors("model", source):
        check_folder(source)
        _check_kind(transformers, source)
        check_model(kind, "model", source)
        processor = transformers.AutoProcessor.from_pretrained(
            source, trust_remote_code=False
        )
        model = getattr(transformers, kind).from_pretrained(
            source,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            attn_implementation="sdpa",
        )
    return model, processor


def _check_kind(transformers: Any, source: str) -> None:
    options = {"trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(source, **options)
    if config.model_type != "llava":
        raise ConfigError(
            f"{source!r} is a model of type {config.model_type!r}, and llava: takes "
            "those of type 'llava' (one picture, one square). For a language model "
            "without an image tower make a projector: privaudit pretrain projector."
        )


def _language_part(model: Any) -> str:
    inner = model.model.language_model
    return next(name for name, module in model.named_modules() if module is inner)


def _picture_tower(model: Any, processor: Any) -> PictureTower:
    prepare = ProcessorPreparation(processor)
    encode = _encoder(model)
    size = int(model.config.vision_config.image_size)
    example = prepare.example(size)
    parts = encode(example.to(model.device)).shape[1]
    config, settings = model.config, processor.to_json_string()
    kind = (config.vision_feature_layer, config.vision_feature_select_strategy)
    return PictureTower(encode, prepare, size, parts, f"{kind} {settings}")


def _encoder(model: Any) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def encode(pictures: Tensor) -> Tensor:
        found = model.get_image_features(pictures.to(model.dtype), return_dict=True)
        return torch.stack(list(found.pooler_output))

    return encode
