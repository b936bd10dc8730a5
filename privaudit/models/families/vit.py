"""Image towers of transformers, such as ViT and DINOv2, under a head for the classes."""

from privaudit.models.hugging_face import load_model, load_reader, refuse_types
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.picture_classifier import vit
from privaudit.models.transformers.tunable_classifiers import TunableClassifier


def _load(asked: ModelRequest) -> TunableClassifier:
    refuse_types(asked.source, "vit:", "siglip2", "siglip2_vision_model", "swinv2")
    model = load_model(
        "AutoModel", "image tower", asked.source, asked.device, asked.dtype
    )
    processor = load_reader("AutoImageProcessor", "image processor", asked.source)
    return vit(asked.name, model, processor, asked.targets)


MODELS.register("vit")(ModelFamily("classification", _load, FOLDER_OR_HUB))
