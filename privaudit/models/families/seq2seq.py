"""Encoder-decoders of transformers, such as T5, without pictures."""

from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.language.separate_tokens import SeparateTokens
from privaudit.models.language.stacked_seq2seq import StackedSeq2Seq
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.text_writer import TextWriter


def _load(asked: ModelRequest) -> TextWriter:
    kind, source = "AutoModelForSeq2SeqLM", asked.source
    where = asked.device, asked.dtype, asked.bits
    model = load_model(kind, "encoder-decoder", source, *where)
    tokenizer = load_reader("AutoTokenizer", "tokenizer", source)
    language = StackedSeq2Seq(model, tokenizer, asked.targets)
    words = SeparateTokens(tokenizer, "{question}", 0, language.context)
    return TextWriter(asked.name, language, words)


MODELS.register("seq2seq")(
    ModelFamily("generation", _load, FOLDER_OR_HUB, records="texts", packs=True)
)
