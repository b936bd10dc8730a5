"""Causal language models of transformers, such as LLaMA, without pictures."""

from typing import Any

from privaudit.models.language.bare_language import load_language
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import FOLDER_OR_HUB, MODELS, ModelFamily, ModelRequest
from privaudit.models.transformers.text_writer import TextWriter

_QUESTION = "QUESTION-GOES-HERE"
_PLAIN = "{question}"


def _load(asked: ModelRequest) -> TextWriter:
    model, tokenizer = load_language(asked.source)
    language = StackedLanguageModel(model.to(asked.device), tokenizer, asked.targets)
    words = DialogueTokens(tokenizer, chat_template(tokenizer), 0, language.context)
    return TextWriter(asked.name, language, words)


def chat_template(tokenizer: Any) -> str:
    """Return the prompt that a tokenizer's chat template writes around a question.

    The place is {question}; without a chat template the prompt is the question itself.
    """
    if not getattr(tokenizer, "chat_template", None):
        return _PLAIN
    written: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": _QUESTION}],
        add_generation_prompt=True,
        tokenize=False,
    )
    return written.replace(_QUESTION, _PLAIN, 1)


MODELS.register("decoder")(
    ModelFamily("generation", _load, FOLDER_OR_HUB, records="texts")
)
