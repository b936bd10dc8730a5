"""Encoders of texts of transformers, such as BERT, under a head for the classes."""

from privaudit.core.errors import ConfigError
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.text_classifier import TextClassifier


def _load(asked: ModelRequest) -> TextClassifier:
    where = asked.device, asked.dtype, asked.bits
    model = load_model("AutoModel", "encoder", asked.source, *where)
    if model.config.is_encoder_decoder or getattr(model.config, "is_decoder", False):
        raise ConfigError(
            f"{asked.source!r} is a model of type {model.config.model_type!r}, which "
            "writes. Name it decoder: or seq2seq:, or use an encoder, such as BERT."
        )
    tokenizer = load_reader("AutoTokenizer", "tokenizer", asked.source)
    return TextClassifier(asked.name, model, tokenizer, asked.targets)


MODELS.register("encoder")(
    ModelFamily("classification", _load, FOLDER_OR_HUB, records="texts", packs=True)
)
