"""The image tower's own lessons, before there are words: which objects are there.

A tower that can tell shapes apart lets the language model begin with words. Each
position of the map scores every pair of a shape with a colour, a texture and a size;
a pair is in the picture if it is at some position, so scores are pooled by their soft
maximum. And each position says how many objects of a shape are there, which adds up.

Source: soft maximum over places as in Pinheiro and Collobert, "From image-level to
pixel-level labeling with convolutional networks", CVPR 2015, equation 5.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    smooth_l1_loss,
    softplus,
)

from privaudit.datasets.scenes.distributions import ORDINARY, draw_scene
from privaudit.datasets.scenes.drawing import draw_pictures
from privaudit.datasets.scenes.parts import COLOURS, SHAPES, SIZES, TEXTURES, Scene
from privaudit.models.tiny_llava.architecture import CHANNELS, PictureEncoder
from privaudit.models.tiny_llava.loading import prepare

_LOOKS = len(COLOURS) + len(TEXTURES) + len(SIZES)
PAIRS = len(SHAPES) * _LOOKS
_COUNTING = 0.1  # weight of the counts


def shown(scene: Scene) -> Float[np.ndarray, " pairs_and_counts"]:
    """Tell which pairs of a shape and a look are in a scene, and how many of a shape.

    Returns:
        1 or 0 for each pair, then a number for each shape.
    """
    counts = np.zeros(len(SHAPES), dtype=np.float32)
    table = np.zeros((len(SHAPES), _LOOKS), dtype=np.float32)
    for group in scene.groups:
        texture = len(COLOURS) + group.texture
        size = len(COLOURS) + len(TEXTURES) + group.size
        table[group.shape, [group.colour, texture, size]] = 1.0
        counts[group.shape] = group.count
    return np.concatenate([table.reshape(-1), counts])


def looking_loss(
    scores: Float[Tensor, "n 16 pairs_and_counts"],
    truth: Float[Tensor, "n pairs_and_counts"],
) -> Float[Tensor, ""]:
    """Add the pairs' mean cross-entropy, in nats, and a tenth of the counts' error.

    The error is squared below 1 and linear above, and a mean over shapes.
    """
    pairs = scores[:, :, :PAIRS].logsumexp(dim=1)
    counts = softplus(scores[:, :, PAIRS:]).sum(dim=1)
    entropy = binary_cross_entropy_with_logits(pairs, truth[:, :PAIRS])
    return entropy + _COUNTING * smooth_l1_loss(counts, truth[:, PAIRS:])


def look(
    encoder: PictureEncoder,
    steps: int,
    batch: int,
    learning_rate: float,
    rng: np.random.Generator,
    *,
    half: bool,
) -> Iterator[float]:
    """Train the tower on ordinary scenes, and yield every step's loss.

    Args:
        encoder: Whose tower is trained; its projector is not.
        steps: Batches.
        batch: Pictures in each.
        learning_rate: At the start; falls as a cosine to 0.
        rng: Source of scenes and pictures.
        half: Compute in bfloat16.
    """
    head = nn.utils.skip_init(nn.Linear, CHANNELS, PAIRS + len(SHAPES))
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, -6.0)  # most of it is not there
    parameters = [*encoder.tower.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, learning_rate, (0.9, 0.98))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        scenes = [draw_scene(ORDINARY, rng) for _ in range(batch)]
        pictures = prepare(torch.from_numpy(draw_pictures(scenes, rng)))
        truth = torch.from_numpy(np.stack([shown(scene) for scene in scenes]))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            scores = head(encoder.see(pictures))
        loss = looking_loss(scores.float(), truth)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()
