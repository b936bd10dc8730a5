"""Causal language models of transformers, such as LLaMA, without pictures."""

from privaudit.models.language.bare_language import load_language
from privaudit.models.language.dialogue_tokens import DialogueTokens, chat_template
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.text_writer import TextWriter


def _load(asked: ModelRequest) -> TextWriter:
    where = asked.dtype, asked.device, asked.bits
    model, tokenizer = load_language(asked.source, *where)
    language = StackedLanguageModel(model, tokenizer, asked.targets)
    template = chat_template(tokenizer, template=asked.template)
    words = DialogueTokens(tokenizer, template, 0, language.context)
    return TextWriter(asked.name, language, words)


MODELS.register("decoder")(
    ModelFamily(
        "generation",
        _load,
        FOLDER_OR_HUB,
        records="texts",
        takes_template=True,
        packs=True,
    )
)
