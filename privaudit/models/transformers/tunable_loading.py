"""Transformers of any family by name, for trainers that tune them."""

from collections.abc import Callable
from typing import Any

import torch

from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.models.hugging_face import import_transformers, loading_errors
from privaudit.models.language.bare_language import load_language
from privaudit.models.language.blip import load_blip
from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.separate_tokens import SeparateTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.language.stacked_seq2seq import StackedSeq2Seq
from privaudit.models.names import CLASSIFYING, WRITING, kind_of
from privaudit.models.transformers.picture_classifier import clip, vit
from privaudit.models.transformers.text_classifier import TextClassifier
from privaudit.models.transformers.text_writer import TextWriter
from privaudit.models.transformers.tunable_classifiers import TunableClassifier

_QUESTION = "QUESTION-GOES-HERE"
_PLAIN = "{question}"
Loaded = TunableClassifier | TextWriter | CaptioningVLM


def load_tunable(
    name: str, *, device: str = "cpu", targets: TargetNames = "all-linear"
) -> Loaded:
    """Load a transformer with its weights, frozen. No code of a model is run.

    Args:
        name: A kind and a source, which is a folder of transformers or a name on the
            hub: "encoder:" reads texts and tells classes apart, and so do "vit:" and
            "clip:" with pictures; "decoder:" and "seq2seq:" read texts and write, and
            "blip:" writes about pictures.
        device: Where the model runs, as torch names it.
        targets: Linear layers that may be changed: "all-linear", or names or endings of
            names.

    Raises:
        UnknownNameError: There is no such kind.
        MissingFileError: Its files are not there, or could not be downloaded.
        ConfigError: They cannot be used, or a target fits no layer.
    """
    kind, _, source = name.partition(":")
    if kind_of(name) is None:
        raise UnknownNameError("model", name, (*CLASSIFYING, *WRITING))
    if not source:
        raise ConfigError(
            f"{name} names no folder. Write for example {name}models/mine."
        )
    return _LOADERS[kind](name, source, device, targets)


def _encoder(
    name: str, source: str, device: str, targets: TargetNames
) -> TunableClassifier:
    model = _pretrained("AutoModel", "encoder", source, device)
    if model.config.is_encoder_decoder or getattr(model.config, "is_decoder", False):
        raise ConfigError(
            f"{source!r} is a model of type {model.config.model_type!r}, which writes. "
            "Name it decoder: or seq2seq:, or use an encoder, such as BERT."
        )
    tokenizer = _pretrained("AutoTokenizer", "tokenizer", source)
    return TextClassifier(name, model, tokenizer, targets)


def _vit(
    name: str, source: str, device: str, targets: TargetNames
) -> TunableClassifier:
    model = _pretrained("AutoModel", "image tower", source, device)
    processor = _pretrained("AutoImageProcessor", "image processor", source)
    return vit(name, model, processor, targets)


def _clip(
    name: str, source: str, device: str, targets: TargetNames
) -> TunableClassifier:
    _check_type(source, "clip:", "clip")
    model = _pretrained("CLIPModel", "CLIP", source, device)
    processor = _pretrained("AutoImageProcessor", "image processor", source)
    tokenizer = _pretrained("AutoTokenizer", "tokenizer", source)
    return clip(name, model, tokenizer, processor, targets)


def _decoder(name: str, source: str, device: str, targets: TargetNames) -> TextWriter:
    model, tokenizer = load_language(source)
    language = StackedLanguageModel(model.to(device), tokenizer, targets)
    template = chat_template(tokenizer)
    return TextWriter(
        name, language, DialogueTokens(tokenizer, template, 0, language.context)
    )


def _seq2seq(name: str, source: str, device: str, targets: TargetNames) -> TextWriter:
    model = _pretrained("AutoModelForSeq2SeqLM", "encoder-decoder", source, device)
    tokenizer = _pretrained("AutoTokenizer", "tokenizer", source)
    language = StackedSeq2Seq(model, tokenizer, targets)
    return TextWriter(
        name, language, SeparateTokens(tokenizer, _PLAIN, 0, language.context)
    )


def _blip(name: str, source: str, device: str, targets: TargetNames) -> CaptioningVLM:
    _check_type(source, "blip:", "blip-2")
    model = _pretrained("Blip2ForConditionalGeneration", "BLIP-2", source, device)
    processor = _pretrained("AutoImageProcessor", "image processor", source)
    tokenizer = _pretrained("AutoTokenizer", "tokenizer", source)
    return load_blip(name, model, processor, tokenizer, targets)


_LOADERS: dict[str, Callable[[str, str, str, TargetNames], Loaded]] = {
    "encoder": _encoder,
    "vit": _vit,
    "clip": _clip,
    "decoder": _decoder,
    "seq2seq": _seq2seq,
    "blip": _blip,
}


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


def _pretrained(kind: str, what: str, source: str, device: str | None = None) -> Any:
    """Load one part; with a device it is a model, in float32 and frozen."""
    transformers = import_transformers()
    options: dict[str, Any] = {"trust_remote_code": False}
    if device is not None:
        options |= {
            "use_safetensors": True,
            "dtype": torch.float32,
            "attn_implementation": "sdpa",
        }
    with loading_errors(what, source):
        found = getattr(transformers, kind).from_pretrained(source, **options)
    if device is None:
        return found
    return found.to(device).eval().requires_grad_(False)


_REASONS = {
    "blip": "its pictures reach the words by attention of its own, into which no "
    "prefix can be put",
    "instructblip": "its picture tokens depend on the question, so they cannot be "
    "computed once",
}


def _check_type(source: str, name: str, wanted: str) -> None:
    with loading_errors("model", source):
        config = import_transformers().AutoConfig.from_pretrained(
            source, trust_remote_code=False
        )
    if config.model_type == wanted:
        return
    why = _REASONS.get(config.model_type)
    raise ConfigError(
        f"{source!r} is a model of type {config.model_type!r}, and {name} takes those "
        f"of type {wanted!r}{f': {why}' if why else ''}. Use one of these."
    )
