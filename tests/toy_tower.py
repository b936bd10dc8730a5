"""A transformer of one linear layer and one look at a prefix: quick, easy to check."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privaudit.core.seeds import Stream
from privaudit.datasets.records import TokenSequences
from privaudit.models.interfaces import Head, Site, TunableLayer, Tuning

HEADS = 2


@dataclass(frozen=True)
class ToyTower:
    """Features pass one layer, look at the prefix, and meet the class texts.

    A prompt moves every feature by its mean.
    """

    weight: Tensor
    texts: Tensor
    head: Head | None = field(default=None)

    @property
    def width(self) -> int:
        return len(self.weight)

    @property
    def targets(self) -> Mapping[str, TunableLayer]:
        return {"layer": TunableLayer(self.width, self.width, 0)}

    @property
    def sites(self) -> Mapping[str, Site]:
        return {"layer.look": Site(HEADS, self.width // HEADS)}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {"layer.weight": self.weight}

    def start_vectors(self, count: int, stream: Stream) -> Tensor:
        return stream.normal_tensor((count, self.width))

    def logits(
        self,
        features: Tensor,
        tokens: Tensor | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Tensor:
        weight = tuning.weights.get("layer.weight", self.weight)
        moved = features @ weight.mT
        if "layer" in tuning.changes:
            moved = moved + tuning.changes["layer"](features)
        if tuning.prompt is not None:
            moved = moved + tuning.prompt.mean(dim=1, keepdim=True)
        if "layer.look" in tuning.prefix:
            moved = moved + _look(moved, *tuning.prefix["layer.look"])
        return 4 * torch.tanh(moved) @ self.texts.T


def _look(moved: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    asked = moved.unflatten(2, (HEADS, -1)).transpose(1, 2)
    seen = (asked @ keys.mT).softmax(dim=-1) @ values
    return seen.transpose(1, 2).flatten(2)


def toy_tower(dim: int, classes: int) -> ToyTower:
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(dim, dim, generator=generator) / dim**0.5
    return ToyTower(weight, torch.randn(classes, dim, generator=generator))
