"""Towers of transformers, tuned: encoders of texts and image towers, that tell classes apart.

An image tower has a head of its own, or class texts as CLIP has them. A picture's
embedded patches are the frozen model's, so they are computed once and are the records'
tokens. They stay frozen under full fine-tuning too: what is learned begins behind them.
A prompt stands in front of them. Where it stands makes no difference, as no position is
added behind the embeddings.
"""

import inspect
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import at_least_float32
from privaudit.datasets.records import PADDING, TokenSequences
from privaudit.models.interfaces import Head, Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.transformers.tuned_modules import TunedModules, in_front

POSITIONS_AT_ONCE = 2**15  # of all models together, where nothing is learned


class RowTower(TunedModules):
    """What towers have in common that read records, not class names.

    Attributes:
        head: The head that each model trains for itself; None where nothing is.
    """

    head: Head | None = None

    def rows_of(
        self, tokens: Tensor | None, words: TokenSequences | None
    ) -> Tensor | TokenSequences:
        """Return what the tower reads of records.

        Raises:
            ConfigError: They do not have it.
        """
        raise NotImplementedError

    def logits(
        self,
        features: Float[Tensor, "k rows d"],
        tokens: Float[Tensor, "k rows parts width"] | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Float[Tensor, "k rows classes"]:
        """Return what each model says to the records."""
        return self.scores(self.vectors(self.rows_of(tokens, words), tuning), tuning)

    def scores(
        self, vectors: Float[Tensor, "k rows width"], tuning: Tuning
    ) -> Float[Tensor, "k rows classes"]:
        """Return what each model's own head gives; zeros where none was trained."""
        assert self.head is not None
        if not tuning.head:
            return vectors.new_zeros(*vectors.shape[:2], self.head.classes)
        weight, bias = (tuning.head[n].to(vectors.dtype) for n in ("weight", "bias"))
        return torch.einsum("krw,kcw->krc", vectors, weight) + bias[:, None]

    def pooled(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        """Return each record's vector under each model, none with own weights."""
        raise NotImplementedError

    def vectors(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        """Return each record's vector under each model, of [k, rows, positions, ...].

        Where no gradient is asked for, records are taken some at a time.
        """
        if not tuning.weights:
            return self._in_parts(rows, tuning)
        return self.each_alone(
            tuning, lambda n, rest: self._in_parts(rows[slice(n, n + 1)], rest)
        )

    def _in_parts(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows width"]:
        shape = (rows.ids if isinstance(rows, TokenSequences) else rows).shape
        models, count, positions = shape[:3]
        if torch.is_grad_enabled():
            return at_least_float32(self.pooled(rows, tuning))
        size = max(1, POSITIONS_AT_ONCE // max(1, models * positions))
        parts = [
            at_least_float32(self.pooled(rows[:, first : first + size], tuning))
            for first in range(0, max(1, count), size)
        ]
        return torch.cat(parts, dim=1)


def without_pooler(model: Any) -> Any:
    """Take the pooler out: no head here reads it, and some come with a random one."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


Pooling = Literal["first", "mean"]


class TextEncoderTower(RowTower):
    """A bidirectional encoder and a linear head.

    A text's vector is the state of its first token, which such models begin each text
    with for that purpose, or the mean over its tokens where the family has none such. A
    prompt stands in front of it. peft's own models for classification take the first
    position as well, and so behind a prompt the prompt's first vector: there the two
    differ, in what the head reads only.

    Args:
        model: An encoder of transformers that takes ``inputs_embeds``.
        classes: How many the head tells apart.
        pooling: "first" token, or "mean".
        separator: The token that ends the first of two texts, where the model tells
            the two apart; None where it does not.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        *,
        pooling: Pooling = "first",
        separator: int | None = None,
        targets: TargetNames = "all-linear",
    ) -> None:
        super().__init__(model, targets)
        self.head = Head(classes, int(self.model.config.hidden_size))
        self.width = int(self._embedding.weight.shape[1])
        longest = getattr(self.model.config, "max_position_embeddings", None)
        self.context = int(longest) - self._first_position if longest else None
        self._pooling, self._separator = pooling, separator
        self._takes = inspect.signature(self.model.forward).parameters

    def rows_of(
        self, tokens: Tensor | None, words: TokenSequences | None
    ) -> TokenSequences:
        """Return texts, without what is padding in all of them."""
        if words is None:
            raise ConfigError(
                "A model that reads texts was given records without any. Use a data "
                "set of texts, or a model that looks at pictures."
            )
        return words.trimmed()

    def pooled(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows hidden"]:
        """Return each text's vector under each model."""
        assert isinstance(rows, TokenSequences)
        states = self.states(rows, tuning)[:, :, tuning.virtual_tokens :]
        if self._pooling == "first":
            return states[:, :, 0]
        mask = seen(rows).to(states.dtype)[..., None]
        return (states * mask).sum(dim=2) / mask.sum(dim=2)

    def states(
        self, words: TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows longer hidden"]:
        """Return the last layer's state of each vector of the prompt and each token."""
        models, rows, length = words.ids.shape
        if self._relative and tuning.changes and models > 1:
            apart = [
                self.states(words[slice(n, n + 1)], tuning.alone(n, models))
                for n in range(models)
            ]
            return torch.cat(apart)
        front = tuning.virtual_tokens
        self.check_length(length, tuning)
        flat = in_front(tuning.prompt, self._embedding(words.ids)).flatten(0, 1)
        mask = torch.cat([seen(words)[..., :1].expand(-1, -1, front), seen(words)], -1)
        options = self._types(words, front)
        if "position_ids" in self._takes:
            options |= self._places(tuning, front + length, self._first_position)
        seen_by_layers = () if self._relative else (models * rows * (front + length),)
        with self.tuned(tuning, models, *seen_by_layers):
            states = self.model(
                inputs_embeds=flat, attention_mask=mask.flatten(0, 1).long(), **options
            ).last_hidden_state
        return states.unflatten(0, (models, rows))

    def run_once(self) -> object:
        """Run the model on three empty tokens."""
        empty = torch.zeros(1, 3, self.width, device=self._embedding.weight.device)
        return self.model(inputs_embeds=empty.to(self._embedding.weight.dtype))

    def _types(self, words: TokenSequences, front: int) -> dict[str, Tensor]:
        """Say which of two texts tokens are of; peft's prompts are of the first."""
        if self._separator is None:
            return {}
        types = second_texts(words, self._separator)
        types = torch.cat([types[..., :1].expand(-1, -1, front) * 0, types], dim=-1)
        return {"token_type_ids": types.flatten(0, 1)}

    @cached_property
    def _relative(self) -> bool:
        """Whether layers also see embedded distances, once for all rows: DeBERTa's.

        So models that change layers have to run one after the other.
        """
        return any(n.endswith("rel_embeddings") for n, _ in self.model.named_modules())

    @cached_property
    def _first_position(self) -> int:
        """Where the table of positions begins: RoBERTa's relatives leave some out."""
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and isinstance(
                module, nn.Embedding
            ):
                return 0 if module.padding_idx is None else module.padding_idx + 1
        return 0


def seen(words: TokenSequences) -> Bool[Tensor, "*n length"]:
    """Say which positions count; a row of padding keeps one, so that none is empty."""
    mask = words.kinds != PADDING
    mask[..., 0] = True
    return mask


def second_texts(words: TokenSequences, separator: int) -> Int[Tensor, "*n length"]:
    """Return 1 where a token stands behind the first separator, else 0."""
    ends = (words.ids == separator).long()
    behind = (ends.cumsum(dim=-1) - ends) > 0
    return (behind & (words.kinds != PADDING)).long()


@dataclass(frozen=True)
class FrozenTexts:
    """Class texts before which an image tower is tuned.

    Attributes:
        features: l2-normalised, of each class.
        logit_scale: What cosines are multiplied by.
    """

    features: Float[Tensor, "classes dim"]
    logit_scale: float


class VisionTower(RowTower):
    """Layers of an image tower behind its embeddings, and a head or frozen class texts.

    A subclass says which layers.

    Attributes:
        windows: Whether layers see windows of patches, so that a layer may see another
            number of positions than there are, and nothing may stand in front of them.
        embeddings: The name of the part that makes pixels into tokens.
        tuned_part: The name of the part whose layers these are; "" is the whole.

    Args:
        classes: How many a linear head tells apart, or the texts of the classes.
    """

    windows: ClassVar[bool] = False
    embeddings: ClassVar[str] = "embeddings"
    tuned_part: ClassVar[str] = ""

    def __init__(
        self, model: nn.Module, classes: int | FrozenTexts, targets: TargetNames
    ) -> None:
        super().__init__(model, targets, self.tuned_part)
        self.embed: Any = self.model.get_submodule(self.embeddings)
        start, named = f"{self.embeddings}.", self.model.named_parameters()
        self.weights = {n: t for n, t in named if not n.startswith(start)}
        self.width = int(self.model.config.hidden_size)
        self._texts = classes if isinstance(classes, FrozenTexts) else None
        self.head = Head(classes, self.width) if isinstance(classes, int) else None

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all layers, and return the last one's states."""
        raise NotImplementedError

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Make a picture's vector of the states behind the prompt."""
        raise NotImplementedError

    def pooled(
        self, rows: Tensor | TokenSequences, tuning: Tuning
    ) -> Float[Tensor, "k rows dim"]:
        """Return each picture's vector under each model."""
        assert isinstance(rows, Tensor)
        models, count = rows.shape[:2]
        flat = in_front(tuning.prompt, rows).flatten(0, 1)
        seen = (models * count * flat.shape[1], models * count)
        with self.tuned(tuning, models, *(() if self.windows else seen)):
            states = self.layers(flat)
            vectors = self.finish(states[:, tuning.virtual_tokens :])
        return vectors.unflatten(0, (models, count))

    def rows_of(self, tokens: Tensor | None, words: TokenSequences | None) -> Tensor:
        """Return pictures' patches."""
        if tokens is None:
            raise ConfigError(
                "A model that looks at pictures was given records without their "
                "patches. Use a data set of pictures, or a model that reads."
            )
        return tokens

    def scores(
        self, vectors: Float[Tensor, "k rows dim"], tuning: Tuning
    ) -> Float[Tensor, "k rows classes"]:
        """Return what the own head says, or scaled cosines with the class texts."""
        if self._texts is not None:
            texts = self._texts.features.T.to(vectors.dtype)
            return self._texts.logit_scale * vectors @ texts
        return super().scores(vectors, tuning)

    def run_once(self) -> object:
        """Run the layers on three empty tokens."""
        empty = next(iter(self.weights.values())).new_zeros(1, 3, self.width)
        return self.layers(empty)

    def start_vectors(self, count: int, stream: Stream) -> Float[Tensor, "count width"]:
        """Draw vectors evenly from a cube, as there is no vocabulary.

        Source: Jia et al., "Visual prompt tuning", ECCV 2022: its half side is
        sqrt(6 / (numbers of a patch + width)).
        """
        side = self.model.config.patch_size
        height, across = (side, side) if isinstance(side, int) else side
        half = (6 / (3 * height * across + self.width)) ** 0.5
        drawn = stream.uniform_tensor((count, self.width))
        return ((2 * drawn - 1) * half).to(next(iter(self.weights.values())).device)


class ViTTower(VisionTower):
    """A vision transformer, transformers' ViT or built alike, read at its first token."""

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all layers."""
        for layer in _layers_of(self.model):
            hidden = layer(hidden)
        return hidden

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise the first state as the model does."""
        return self.model.layernorm(states[:, 0])


class SiglipTower(VisionTower):
    """SigLIP's image tower, ``SiglipVisionModel``, read through its pooling head.

    That attends from a learned query to all patches, not to a prompt. It is frozen but
    under full fine-tuning: its attention is no layer that LoRA could change. SigLIP 2
    with pictures of one size is one, too.
    """

    tuned_part = "encoder"

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all layers."""
        return self.model.encoder(inputs_embeds=hidden).last_hidden_state

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise all states, and pool them; before class texts, to length 1."""
        vectors: Tensor = self.model.head(self.model.post_layernorm(states))
        return vectors if self._texts is None else normalize(vectors, dim=-1)


class ClipVisionTower(VisionTower):
    """The image tower of CLIP, as ``CLIPVisionModelWithProjection``, before texts."""

    embeddings = "vision_model.embeddings"

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run the first normalisation and all layers."""
        tower = self.model.vision_model
        normal = tower.pre_layrnorm(hidden)
        return tower.encoder(inputs_embeds=normal).last_hidden_state

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise the first state, and project it to where the class texts are."""
        normal = self.model.vision_model.post_layernorm(states[:, 0])
        return normalize(self.model.visual_projection(normal), dim=-1)


class SwinTower(VisionTower):
    """A Swin transformer, without its pooler, read as the mean of its last states.

    A window has no place for a prompt or a prefix: neither is taken.
    """

    windows = True

    def __init__(
        self, model: nn.Module, classes: int | FrozenTexts, targets: TargetNames
    ) -> None:
        super().__init__(model, classes, targets)
        self.embed = lambda pictures: self.model.embeddings(pictures)[0]
        self.width, self.sites = 0, {}

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all stages on a square of patches."""
        side = isqrt(hidden.shape[1])
        return self.model.encoder(hidden, (side, side)).last_hidden_state

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise all states, and return their mean."""
        return self.model.layernorm(states).mean(dim=1)


def classifying_tower(model: Any, classes: int, targets: TargetNames) -> VisionTower:
    """Return an image tower under a head, as it is built."""
    if model.config.model_type == "siglip_vision_model" and model.use_head:
        return SiglipTower(model, classes, targets)
    if model.config.model_type == "swin":
        return SwinTower(model, classes, targets)
    _layers_of(model)  # refuses what is built in another way
    return ViTTower(model, classes, targets)


def _layers_of(model: Any) -> nn.ModuleList:
    """Return the layers of ViT and its relatives; transformers has two places."""
    tower_layers = getattr(model, "layers", None)
    if tower_layers is None:
        tower_layers = getattr(getattr(model, "encoder", None), "layer", None)
    plain = hasattr(model, "embeddings") and hasattr(model, "layernorm")
    if isinstance(tower_layers, nn.ModuleList) and plain:
        return tower_layers
    raise ConfigError(
        f"An image tower of type {model.config.model_type!r} was given, and only "
        "those built as ViT can be tuned: embeddings, layers, one layernorm. Use one "
        "of type 'vit', 'deit', 'dinov2', 'swin' or 'siglip' (SigLIP 2 of one picture size "
        "is one), or a CLIP as clip:."
    )
