"""Drawn validation pictures: the only ones on which anything about the model is chosen.

Coarse scans of handwritten digits, as close to 8x8 scans of real handwriting as the
drawing code comes: in writing variants that no training may use, and in the others,
written half as sloppily again. By default training draws no handwriting at all, so that
both are a new domain to it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.models.tiny_clip.loading import (
    SmallCLIP,
    TinyTokenizer,
    preprocess_batch,
)
from privaudit_tools.pretraining.captions import KIND
from privaudit_tools.pretraining.drawing import DrawingSettings, Pictures, draw
from privaudit_tools.pretraining.marks import DIGITS, build_marks

TEMPLATES = ("a photo of a {}.", "a photo of the digit {}.")


@dataclass(frozen=True)
class TinyClipValidation:
    """Sets of drawn digits, by name."""

    sets: dict[str, Pictures]

    @torch.no_grad()
    def accuracies(self, model: SmallCLIP) -> dict[str, float]:
        """Measure zero-shot accuracy per template and set, and each template's mean."""
        features = {
            name: model.visual(preprocess_batch(pictures.pixels))
            for name, pictures in self.sets.items()
        }
        results: dict[str, float] = {}
        for template in TEMPLATES:
            texts = digit_features(model, template)
            values = {
                f"{template} {name}": zero_shot_accuracy(
                    features[name], texts, pictures.attributes[:, KIND]
                )
                for name, pictures in self.sets.items()
            }
            mean = sum(values.values()) / len(values)
            results |= values | {f"{template} mean": mean}
        return results


def build_validation(count: int, seed: int) -> TinyClipValidation:
    """Draw the validation sets.

    Args:
        count: Pictures in each.
        seed: Other than training's.
    """
    generator = torch.Generator().manual_seed(seed)
    unseen = build_marks(generator, held_out=True, copies=60)
    sloppy = build_marks(generator, copies=20, jitter=0.075)
    scans = DrawingSettings(digits=1, letters=0, handwritten=1, scans=1, bend=0.06)
    return TinyClipValidation(
        {
            "unseen variants": draw(unseen, count, generator, scans),
            "sloppy writing": draw(sloppy, count, generator, scans),
        }
    )


@torch.no_grad()
def digit_features(model: SmallCLIP, template: str) -> Float[Tensor, "10 d"]:
    """Encode the ten digits' names in a template, normalised."""
    tokens = TinyTokenizer()([template.format(name) for name in DIGITS])
    return normalize(model.encode_text(tokens))


def zero_shot_accuracy(
    features: Float[Tensor, "n d"],
    texts: Float[Tensor, "classes d"],
    labels: Int[Tensor, " n"],
) -> float:
    """Tell the share of pictures whose nearest text is the right one.

    Args:
        features: Of the pictures; their lengths do not matter.
        texts: Of the classes, normalised.
        labels: Right class of each picture.
    """
    return ((features @ texts.T).argmax(1) == labels).float().mean().item()
