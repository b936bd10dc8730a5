"""Class texts of transformers' CLIP and SigLIP, written by hand or behind a context.

SigLIP's texts are in lower case and padded to the tower's context, and nothing is
masked: its feature is read at the last position, which mostly is padding.

Source: Zhai, Mustafa, Kolesnikov, Beyer, "Sigmoid loss for language image
pre-training", ICCV 2023; Tschannen et al., "SigLIP 2", arXiv:2502.14786.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.models.clip.prompt_tokens import prompt_tokens
from privaudit.models.clip.promptable_clip import ClassPrompts, spoken
from privaudit.models.interfaces import Precision


class ClassTexts(nn.Module):
    """The frozen text half of transformers' CLIP or SigLIP."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model, self._tokenizer = model, tokenizer
        self.transformer = model.text_model
        self._is_siglip = model.config.model_type == "siglip"

    @property
    def output_dim(self) -> int:
        """Size of a text's feature."""
        if self._is_siglip:
            return int(self.model.config.text_config.projection_size)
        return int(self.model.config.projection_dim)

    @property
    def context_length(self) -> int:
        """Positions that the text tower has."""
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def logit_scale(self) -> float:
        """What cosines are multiplied by.

        SigLIP also adds a bias, the same to every class: a softmax over classes, and
        so all that trainers and attacks see, does not depend on it.
        """
        return float(self.model.logit_scale.float().exp())

    def encode_text(self, ids: Int[Tensor, "texts length"]) -> Float[Tensor, "texts d"]:
        """Return the features of whole rows, behind the model's own projection."""
        return self.model.get_text_features(ids).pooler_output

    def tokenize(
        self, texts: Sequence[str], context_length: int
    ) -> Int[Tensor, "texts length"]:
        """Return token numbers, padded to a length."""
        return self._tokenizer(
            [text.lower() if self._is_siglip else text for text in texts],
            padding="max_length",
            max_length=context_length,
            truncation=True,
            return_tensors="pt",
        )["input_ids"]

    @torch.no_grad()
    def features(
        self, class_names: Sequence[str], template: str
    ) -> Float[Tensor, "classes dim"]:
        """Return the normalised features of a hand-written prompt for each class."""
        written = [template.format(name) for name in class_names]
        if self._is_siglip:
            rows = self.tokenize(written, self.context_length)
            made = self.encode_text(rows.to(self.model.device))
        else:
            tokens = self._tokenizer(
                written, padding=True, truncation=True, return_tensors="pt"
            ).to(self.model.device)
            made = self.model.get_text_features(
                tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).pooler_output
        return normalize(made.float(), dim=-1)


class ContextPrompts:
    """Contexts in front of class names, read by the text half as a whole.

    Texts are tokenised when the first context is read: who tunes the image tower never
    asks for it.

    Attributes:
        context_tokens: Learned vectors in front of a class name.
        width: Size of one such vector.
    """

    def __init__(
        self,
        texts: ClassTexts,
        class_names: Sequence[str],
        context_tokens: int,
        precision: Precision = "float32",
    ) -> None:
        self._texts, self._names, self._precision = texts, class_names, precision
        self.context_tokens = context_tokens
        self.width = int(texts.transformer.get_input_embeddings().embedding_dim)

    @cached_property
    def _prompts(self) -> ClassPrompts:
        texts = self._texts
        tokens = prompt_tokens(
            texts.tokenize,
            [f"{spoken(name)}." for name in self._names],
            self.context_tokens,
            texts.context_length,
        ).to(texts.model.device)
        return ClassPrompts(texts, tokens, self._names, self._precision)

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return normalised features of every class behind every context."""
        return self._prompts(contexts)
