"""Vision-language models of transformers: LLaVA, Qwen-VL, Gemma 3, and so on."""

from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.vision_language.vlm import VisionLanguageModel, load_vlm


def _load(asked: ModelRequest) -> VisionLanguageModel:
    return load_vlm(
        asked.name,
        asked.source,
        asked.device,
        asked.dtype,
        asked.targets,
        asked.template,
        asked.bits,
    )


MODELS.register("vlm")(
    ModelFamily("generation", _load, FOLDER_OR_HUB, takes_template=True, packs=True)
)
