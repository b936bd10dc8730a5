"""Image towers of transformers, tuned: with a head of their own, or as CLIP has them.

A picture's embedded patches are the frozen model's, so they are computed once and are
the records' tokens. They stay frozen under full fine-tuning too: what is learned
begins behind them. A prompt stands in front of them. Where it stands makes no
difference, as no position is added behind the embeddings.
"""

from dataclasses import dataclass
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
from privaudit.models.transformers.row_tower import RowTower
from privaudit.models.transformers.tuned_modules import in_front


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
        model: As :class:`TunedModules` takes it.
        classes: How many a linear head tells apart, or the texts of the classes.
        targets: As :class:`TunedModules` takes them.
    """

    windows: ClassVar[bool] = False
    embeddings: ClassVar[str] = "embeddings"
    tuned_part: ClassVar[str] = ""

    def __init__(
        self,
        model: nn.Module,
        classes: int | FrozenTexts,
        targets: TargetNames = "all-linear",
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


class ViTTower(VisionTower):
    """A vision transformer, transformers' ViT or built alike, read at its first token.

    Raises:
        ConfigError: The model is built in another way.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: int | FrozenTexts,
        targets: TargetNames = "all-linear",
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
        self,
        model: nn.Module,
        classes: int | FrozenTexts,
        targets: TargetNames = "all-linear",
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
