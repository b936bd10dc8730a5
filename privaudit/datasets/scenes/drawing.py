"""Draws scenes: small pictures of 64 by 64 pixels, thousands a second."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

from privaudit.datasets.scenes.lettering import HEIGHT, write
from privaudit.datasets.scenes.parts import COLOURS, TEXTURES, Group, Scene, Tag
from privaudit.datasets.scenes.regions import (
    DIAMETERS,
    SIDE,
    Region,
    grid,
    regions,
)
from privaudit.datasets.scenes.stamps import TILTS, stamp

_RGB = np.array(
    [
        (0.85, 0.08, 0.10), (0.10, 0.60, 0.15), (0.10, 0.20, 0.85), (0.98, 0.92, 0.10),
        (0.04, 0.04, 0.04), (0.99, 0.99, 0.99), (0.98, 0.52, 0.05), (0.50, 0.10, 0.65),
        (0.99, 0.60, 0.78), (0.42, 0.24, 0.08),
    ],
    dtype=np.float32,
)  # fmt: skip
assert len(_RGB) == len(COLOURS)
_STRIPED, _DOTTED, _HOLLOW = (TEXTURES.index(n) for n in TEXTURES[1:])
_PITCH = 4  # pixels from one stripe or dot to the next
_NOISE = 0.02
_Canvas = Float[np.ndarray, "64 64 3"]


def draw_pictures(
    scenes: Sequence[Scene], rng: np.random.Generator
) -> UInt8[np.ndarray, "n 3 64 64"]:
    """Draw scenes; place, tilt, shades and noise are random."""
    pictures = np.empty((len(scenes), 3, SIDE, SIDE), dtype=np.uint8)
    for picture, scene in zip(pictures, scenes, strict=True):
        canvas = _draw(scene, rng)
        canvas += _NOISE * rng.standard_normal(canvas.shape, dtype=np.float32)
        picture[:] = (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8).transpose(2, 0, 1)
    return pictures


def _draw(scene: Scene, rng: np.random.Generator) -> _Canvas:
    """Draw one scene without noise."""
    light, *tint = rng.random(4)
    canvas = np.empty((SIDE, SIDE, 3), dtype=np.float32)
    canvas[:] = 0.52 + 0.14 * light + 0.1 * (np.array(tint) - 0.5)
    places = regions(len(scene.groups), scene.arrangement)
    for group, region in zip(scene.groups, places, strict=True):
        _draw_group(group, region, canvas, rng)
    if scene.tag is not None:
        _draw_tag(scene.tag, canvas)
    return canvas


def _draw_group(
    group: Group, region: Region, canvas: _Canvas, rng: np.random.Generator
) -> None:
    front = _RGB[group.colour] + 0.04 * rng.standard_normal(3, dtype=np.float32)
    rows, columns = grid(region, group.count)
    height, width = region.height / rows, region.width / columns
    cells = rng.permutation(rows * columns)[: group.count]
    least, largest = DIAMETERS[group.size]
    chances = rng.random((group.count, 4)).tolist()
    paint = _paint(front, group.texture, largest)
    for cell, (down, right, tilt, wide) in zip(cells, chances, strict=True):
        diameter = least + int(wide * (largest - least + 1))
        row, column = divmod(int(cell), columns)
        top = region.top + row * height + down * (height - diameter - 0.5)
        left = region.left + column * width + right * (width - diameter - 0.5)
        hollow = group.texture == _HOLLOW
        mask = stamp(group.shape, diameter, int(tilt * len(TILTS)), hollow)
        y, x = int(top), int(left)
        patch = canvas[y : y + diameter, x : x + diameter]
        patch += mask[:, :, None] * (paint[:diameter, :diameter] - patch)


def _paint(
    front: Float[np.ndarray, " 3"], texture: int, diameter: int
) -> Float[np.ndarray, "#diameter #diameter 3"]:
    """Return an object's colour at every pixel."""
    if texture not in (_STRIPED, _DOTTED):
        return front[None, None]
    light = front.mean() > 0.5
    second = 0.3 * front if light else 0.1 * front + 0.9
    band = np.arange(diameter) % _PITCH < _PITCH // 2
    marked = band[:, None] & (band | (texture == _STRIPED))
    return np.where(marked[:, :, None], second, front)


def _draw_tag(tag: Tag, canvas: _Canvas) -> None:
    """Write letter, number and owner into the lower right corner."""
    ink = write(f"{tag.letter}{tag.number:02d} {tag.owner}")
    canvas[SIDE - HEIGHT :, SIDE - ink.shape[1] :] = 0.05 + 0.9 * ink[:, :, None]
