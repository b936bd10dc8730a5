"""LLaVAs of transformers."""

from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.language.llava import load_llava
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest


def _load(asked: ModelRequest) -> CaptioningVLM:
    return load_llava(
        asked.source,
        asked.device,
        asked.dtype,
        asked.targets,
        asked.template,
        asked.bits,
    )


MODELS.register("llava")(
    ModelFamily("generation", _load, FOLDER_OR_HUB, takes_template=True, packs=True)
)
