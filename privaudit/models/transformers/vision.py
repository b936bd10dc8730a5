"""Image towers of transformers, tuned: with a head of their own, or as CLIP has them.

A picture's embedded patches are the frozen model's, so they are computed once and are
the records' tokens. They stay frozen under full fine-tuning too: what is learned
begins behind them. A prompt stands in front of them. Where it stands makes no
difference, as no position is added behind the embeddings.
"""

from math import isqrt
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.core.streams import Stream
from privaudit.datasets.dialogues import TokenSequences
from privaudit.models.interfaces import Head, Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.transformers.row_tower import RowTower, head_logits
from privaudit.models.transformers.tuned_modules import in_front


class VisionTower(RowTower):
    """Layers of an image tower behind its embeddings.

    A subclass says which layers.

    Attributes:
        windows: Whether layers see windows of patches, so that a layer may see another
            number of positions than there are, and nothing may stand in front of them.

    Args:
        model: Of transformers; put in evaluation mode, its weights are frozen.
        embeddings: The name of the part that makes pixels into tokens.
        targets: Layers that may be changed: "all-linear", or endings of names.
        part: Name of the part whose layers these are, if others have linear layers.

    Raises:
        ConfigError: A target fits no linear layer.
    """

    windows = False

    def __init__(
        self,
        model: nn.Module,
        embeddings: str,
        targets: TargetNames = "all-linear",
        part: str = "",
    ) -> None:
        super().__init__(model, targets, part)
        self.embed: Any = self.model.get_submodule(embeddings)
        named = self.model.named_parameters()
        self.weights = {n: t for n, t in named if not n.startswith(f"{embeddings}.")}
        self.width = int(self.model.config.hidden_size)

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

    def logits(
        self,
        features: Float[Tensor, "k rows d"],
        tokens: Float[Tensor, "k rows parts width"] | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Float[Tensor, "k rows classes"]:
        """Return what each model says to the pictures.

        Raises:
            ConfigError: Records have no pictures.
        """
        if tokens is None:
            raise ConfigError(
                "A model that looks at pictures was given records without their "
                "patches. Use a data set of pictures, or a model that reads."
            )
        return self.scores(self.vectors(tokens, tuning), tuning)

    def scores(
        self, vectors: Float[Tensor, "k rows dim"], tuning: Tuning
    ) -> Float[Tensor, "k rows classes"]:
        """Return logits of pictures' vectors."""
        raise NotImplementedError

    def run_once(self) -> object:
        """Run the layers on three empty tokens."""
        weight = next(iter(self.weights.values()))
        empty = torch.zeros(1, 3, self.width, device=weight.device, dtype=weight.dtype)
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


class ClassifyingTower(VisionTower):
    """An image tower and a linear head on its pictures' vectors.

    Args:
        model: Of transformers.
        classes: What the head tells apart.
        targets: Layers that may be changed: "all-linear", or endings of names.
        part: Name of the part whose layers these are, if others have linear layers.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        targets: TargetNames = "all-linear",
        part: str = "",
    ) -> None:
        super().__init__(model, "embeddings", targets, part)
        self.head = Head(classes, int(self.model.config.hidden_size))

    def scores(
        self, vectors: Float[Tensor, "k rows dim"], tuning: Tuning
    ) -> Float[Tensor, "k rows classes"]:
        """Return what each model's head says; zeros without a head."""
        assert self.head is not None
        return head_logits(vectors, self.head, tuning)


class ViTTower(ClassifyingTower):
    """A vision transformer and a linear head on its first token's state.

    Args:
        model: transformers' ViT, or one that is built alike, without its pooler.
        classes: What the head tells apart.
        targets: Layers that may be changed: "all-linear", or endings of names.

    Raises:
        ConfigError: The model is built in another way.
    """

    def __init__(
        self, model: nn.Module, classes: int, targets: TargetNames = "all-linear"
    ) -> None:
        self._layers = _layers_of(model)
        super().__init__(model, classes, targets)

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all layers."""
        for layer in self._layers:
            hidden = layer(hidden)
        return hidden

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise the first state as the model does."""
        return self.model.layernorm(states[:, 0])


class SiglipTower(ClassifyingTower):
    """SigLIP's image tower and a linear head on what its pooling head gives.

    That attends from a learned query to all patches, not to a prompt. It is frozen but
    under full fine-tuning: its attention is no layer that LoRA could change.

    Args:
        model: transformers' ``SiglipVisionModel``; SigLIP 2 with pictures of one size
            is one, too.
        classes: What the head tells apart.
        targets: Layers that may be changed: "all-linear", or endings of names.
    """

    def __init__(
        self, model: nn.Module, classes: int, targets: TargetNames = "all-linear"
    ) -> None:
        super().__init__(model, classes, targets, "encoder")

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all layers."""
        return _siglip_layers(self.model, hidden)

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise all states, and pool them."""
        return _siglip_vectors(self.model, states)


class TowerBeforeTexts(VisionTower):
    """An image tower that is tuned before frozen class texts.

    Args:
        model: Of transformers.
        texts: Normalised features of the class texts.
        logit_scale: What cosines are multiplied by.
        targets: Layers that may be changed: "all-linear", or endings of names.
    """

    embeddings: ClassVar[str]
    tuned_part: ClassVar[str]

    def __init__(
        self,
        model: nn.Module,
        texts: Float[Tensor, "classes dim"],
        logit_scale: float,
        targets: TargetNames = "all-linear",
    ) -> None:
        super().__init__(model, self.embeddings, targets, self.tuned_part)
        self._texts, self._scale = texts, logit_scale

    def scores(
        self, vectors: Float[Tensor, "k rows dim"], tuning: Tuning
    ) -> Float[Tensor, "k rows classes"]:
        """Return scaled cosines between pictures and class texts."""
        return self._scale * vectors @ self._texts.T.to(vectors.dtype)


class SiglipVisionTower(TowerBeforeTexts):
    """The image tower of SigLIP; its pooling head is as in :class:`SiglipTower`."""

    embeddings, tuned_part = "embeddings", "encoder"

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run all layers."""
        return _siglip_layers(self.model, hidden)

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise all states, pool them, and normalise what comes out."""
        return normalize(_siglip_vectors(self.model, states), dim=-1)


class ClipVisionTower(TowerBeforeTexts):
    """The image tower of CLIP, as ``CLIPVisionModelWithProjection``."""

    embeddings, tuned_part = "vision_model.embeddings", ""

    def layers(self, hidden: Float[Tensor, "n length width"]) -> Tensor:
        """Run the first normalisation and all layers."""
        tower = self.model.vision_model
        normal = tower.pre_layrnorm(hidden)
        return tower.encoder(inputs_embeds=normal).last_hidden_state

    def finish(self, states: Float[Tensor, "n length width"]) -> Float[Tensor, "n dim"]:
        """Normalise the first state, and project it to where the class texts are."""
        normal = self.model.vision_model.post_layernorm(states[:, 0])
        return normalize(self.model.visual_projection(normal), dim=-1)


class SwinTower(ClassifyingTower):
    """A Swin transformer and a linear head on the mean of its last stage's states.

    A window has no place for a prompt or a prefix: neither is taken.

    Args:
        model: transformers' ``SwinModel``, without its pooler.
        classes: What the head tells apart.
        targets: Layers that may be changed: "all-linear", or endings of names.
    """

    windows = True

    def __init__(
        self, model: nn.Module, classes: int, targets: TargetNames = "all-linear"
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


def _siglip_layers(model: Any, hidden: Tensor) -> Tensor:
    states: Tensor = model.encoder(inputs_embeds=hidden).last_hidden_state
    return states


def _siglip_vectors(model: Any, states: Tensor) -> Tensor:
    vectors: Tensor = model.head(model.post_layernorm(states))
    return vectors


def classifying_tower(
    model: Any, classes: int, targets: TargetNames
) -> ClassifyingTower:
    """Return an image tower under a head, as it is built.

    Raises:
        ConfigError: It is built in a way that is unknown here.
    """
    if model.config.model_type == "siglip_vision_model" and model.use_head:
        return SiglipTower(model, classes, targets)
    if model.config.model_type == "swin":
        return SwinTower(model, classes, targets)
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
