"""CLIPs of transformers, whose image tower is tuned before frozen class texts."""

from privaudit.models.hugging_face import check_type, load_model, load_reader
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.picture_classifier import clip
from privaudit.models.transformers.tunable_classifiers import TunableClassifier


def _load(asked: ModelRequest) -> TunableClassifier:
    check_type(asked.source, "clip:", "clip")
    model = load_model("CLIPModel", "CLIP", asked.source, asked.device, asked.dtype)
    processor = load_reader("AutoImageProcessor", "image processor", asked.source)
    tokenizer = load_reader("AutoTokenizer", "tokenizer", asked.source)
    return clip(asked.name, model, tokenizer, processor, asked.targets)


MODELS.register("clip")(ModelFamily("classification", _load, FOLDER_OR_HUB))
