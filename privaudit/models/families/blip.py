"""BLIP-2 of transformers."""

from privaudit.models.hugging_face import check_type, load_model, load_reader
from privaudit.models.language.blip import load_blip
from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest


def _load(asked: ModelRequest) -> CaptioningVLM:
    kind, source = "Blip2ForConditionalGeneration", asked.source
    check_type(source, "blip:", "blip-2")
    model = load_model(kind, "BLIP-2", source, asked.device, asked.dtype, asked.bits)
    processor = load_reader("AutoImageProcessor", "image processor", source)
    tokenizer = load_reader("AutoTokenizer", "tokenizer", source)
    return load_blip(asked.name, model, processor, tokenizer, asked.targets)


MODELS.register("blip")(ModelFamily("generation", _load, FOLDER_OR_HUB, packs=True))
