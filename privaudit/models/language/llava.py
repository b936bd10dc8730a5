"""LLaVA models of transformers: image tower, projector, any causal language model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.devices import CPU
from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import Pictures, as_rgb
from privaudit.models.frozen_model import weights_hash
from privaudit.models.hugging_face import check_type, load_model, load_reader
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import (
    LLAVA_TEMPLATE,
    DialogueTokens,
    chat_template,
)
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.quantisation import Bits


def load_llava(
    source: str,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    targets: TargetNames = "all-linear",
    template: str | None = None,
    bits: Bits | None = None,
) -> CaptioningVLM:
    """Load a LLaVA, frozen; code that comes with it runs only where it is trusted.

    The prompt is of ``template``, else of the model's own chat template, or LLaVA
    1.5's where it has none. Weights of linear layers are packed into ``bits``, if any.

    Raises:
        MissingFileError: It is not there.
        ConfigError: It is no LLaVA, needs code of its own, has no safetensors weights,
            or no layer fits ``targets``.
    """
    check_type(source, "llava:", "llava")
    processor = load_reader("AutoProcessor", "model", source)
    mark = processor.image_token
    prompt = chat_template(processor, LLAVA_TEMPLATE, mark, template)
    kind = "LlavaForConditionalGeneration"
    model = load_model(kind, "model", source, device, dtype, bits)
    eye = _picture_tower(model, processor.image_processor)
    language = StackedLanguageModel(
        model, processor.tokenizer, targets, _language_part(model)
    )
    words = DialogueTokens(
        processor.tokenizer,
        prompt,
        eye.parts,
        language.context,
        mark,
    )
    return CaptioningVLM(f"llava:{source}", eye, language, words, weights_hash(model))


@dataclass(frozen=True)
class ProcessorPreparation:
    """Prepares pictures as the model's own image processor does."""

    processor: Any

    def __call__(self, pictures: Pictures) -> Float[Tensor, "n 3 height width"]:
        """Prepare a batch of pictures of one size.

        Raises:
            ConfigError: Another number of channels, or floats beyond 0 to 1.
        """
        # In floats, resizing would overshoot black and white; in bytes it cannot.
        in_bytes = (as_rgb(pictures) * 255).round().to(torch.uint8)
        made = self.processor(
            images=list(in_bytes),
            return_tensors="pt",
            input_data_format="channels_first",
        )
        return made["pixel_values"].float()

    def example(self, size: int) -> Float[Tensor, "1 3 size size"]:
        """Return a black picture, prepared.

        Raises:
            ConfigError: It is not of the size that the image tower takes.
        """
        made = self(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        if tuple(made.shape[2:]) != (size, size):
            raise ConfigError(
                f"The image processor makes pictures of {tuple(made.shape[2:])} "
                f"pixels, and the image tower takes {size} x {size}. Mend "
                "preprocessor_config.json."
            )
        return made


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
        output = model.get_image_features(pictures.to(model.dtype), return_dict=True)
        return torch.stack(list(output.pooler_output))

    return encode
