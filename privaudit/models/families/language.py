"""Language models with a projector, which ``privaudit pretrain projector`` wrote."""

from pathlib import Path

from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.language.projector_folder import load_captioner_folder
from privaudit.models.registry import FOLDER, MODELS, ModelFamily, ModelRequest


def _load(asked: ModelRequest) -> CaptioningVLM:
    return load_captioner_folder(
        Path(asked.source), asked.device, asked.dtype, asked.targets, asked.template
    )


MODELS.register("language")(
    ModelFamily("generation", _load, FOLDER, takes_template=True)
)
