"""CLIPs and SigLIPs of transformers: their prompts are learned, or their image tower."""

from privaudit.models.hugging_face import check_type, load_model, load_reader
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.picture_classifier import clip
from privaudit.models.transformers.tunable_classifiers import TunableClassifier

_CLASSES = {"clip": "CLIPModel", "siglip": "SiglipModel"}
# SigLIP's own class needs sentencepiece; tokenizer.json says the same, for SigLIP 2 too.
_TOKENIZERS = {"clip": "AutoTokenizer", "siglip": "PreTrainedTokenizerFast"}


def _load(asked: ModelRequest) -> TunableClassifier:
    kind = check_type(asked.source, "clip:", "clip", "siglip")
    model = load_model(_CLASSES[kind], "CLIP", asked.source, asked.device, asked.dtype)
    processor = load_reader("AutoImageProcessor", "image processor", asked.source)
    tokenizer = load_reader(_TOKENIZERS[kind], "tokenizer", asked.source)
    return clip(asked.name, model, tokenizer, processor, asked.targets)


MODELS.register("clip")(
    ModelFamily("classification", _load, FOLDER_OR_HUB, prompted=True)
)
