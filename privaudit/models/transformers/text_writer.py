"""Language models of transformers that write, and look at no pictures."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.devices import CPU
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.records import PADDING, PictureTokens, Records, TokenSequences
from privaudit.models.frozen_model import WritingModel, weights_hash
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.language.dialogue_tokens import (
    DialogueTokens,
    SeparateTokens,
    chat_template,
)
from privaudit.models.language.stacked_language import (
    StackedLanguageModel,
    StackedSeq2Seq,
)
from privaudit.models.precisions import Bits
from privaudit.models.registry import ModelRequest


def load_language(
    source: str,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    bits: Bits | None = None,
) -> tuple[Any, Any]:
    """Return a causal language model of transformers and its tokenizer.

    Code that comes with it runs only where it is trusted, and only safetensors weights
    are read. Those of linear layers are packed into ``bits``, if any.
    """
    what = "language model"
    tokenizer = load_reader("AutoTokenizer", what, source)
    model = load_model("AutoModelForCausalLM", what, source, device, dtype, bits)
    return model, tokenizer


class TextWriter(WritingModel):
    """A language model, and how questions and answers are written as its tokens."""

    language: StackedLanguageModel

    def __init__(
        self, name: str, language: StackedLanguageModel, dialogue_tokens: DialogueTokens
    ) -> None:
        self.name, self.language = name, language
        self.words = dialogue_tokens
        self.model_hash = weights_hash(language.model)

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return questions and answers as tokens, and their mean embeddings."""
        words = self.words(dataset.dialogues)
        pictures = PictureTokens.of(torch.zeros(len(words.ids), 0, self.language.width))
        features = self.features(words)
        return Records(features, dataset.labels, pictures, words, dataset.dialogues)

    @torch.no_grad()
    def features(self, words: TokenSequences) -> Float[Tensor, "n width"]:
        """Return the mean of each record's embedded tokens, l2-normalised."""
        table = self.language.model.get_input_embeddings()
        means = []
        for ids, kinds in zip(words.ids, words.kinds, strict=True):
            embedded = table(ids[kinds != PADDING].to(self.language.device))
            means.append(embedded.float().mean(dim=0))
        return normalize(torch.stack(means), dim=-1)


def load_decoder(request: ModelRequest) -> TextWriter:
    """Load a causal language model, frozen."""
    where = request.dtype, request.device, request.bits
    model, tokenizer = load_language(request.source, *where)
    language = StackedLanguageModel(model, tokenizer, request.targets)
    template = chat_template(tokenizer, template=request.template)
    words = DialogueTokens(tokenizer, template, 0, language.context)
    return TextWriter(request.name, language, words)


def load_seq2seq(request: ModelRequest) -> TextWriter:
    """Load an encoder-decoder, as :func:`load_decoder`."""
    kind, source = "AutoModelForSeq2SeqLM", request.source
    where = request.device, request.dtype, request.bits
    model = load_model(kind, "encoder-decoder", source, *where)
    tokenizer = load_reader("AutoTokenizer", "tokenizer", source)
    language = StackedSeq2Seq(model, tokenizer, request.targets)
    words = SeparateTokens(tokenizer, "{question}", 0, language.context)
    return TextWriter(request.name, language, words)
