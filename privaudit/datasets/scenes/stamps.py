"""The masks that objects are printed with, cut from formulas."""

from functools import cache

import numpy as np
from jaxtyping import Bool, Float
from scipy.ndimage import distance_transform_edt

from privaudit.datasets.scenes.parts import SHAPES

TILTS = (-12.0, -6.0, 0.0, 6.0, 12.0)  # degrees
_FINE = 8  # points across a pixel
_OUTLINE = 1.6  # pixels
_Points = Float[np.ndarray, "side side"]


@cache
def stamp(
    shape: int, diameter: int, tilt: int, hollow: bool
) -> Float[np.ndarray, "diameter diameter"]:
    """Return how much of each pixel an object, or its outline, covers, from 0 to 1.

    The diameter is that of the circle in which every shape lies, in pixels; ``shape`` and
    ``tilt`` are positions in ``SHAPES`` and ``TILTS``.
    """
    line = (np.arange(diameter * _FINE) + 0.5) / (diameter * _FINE) * 2 - 1
    x, y = np.meshgrid(line, -line)  # y goes up
    turn = np.deg2rad(TILTS[tilt])
    along, up = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    inside = _inside(SHAPES[shape], along, up)
    if hollow:
        inside = inside & (distance_transform_edt(inside) < _OUTLINE * _FINE)
    fine = inside.reshape(diameter, _FINE, diameter, _FINE)
    return fine.mean(axis=(1, 3)).astype(np.float32)


def _inside(name: str, x: _Points, y: _Points) -> Bool[np.ndarray, "side side"]:
    """Tell which points of the square from -1 to 1 lie in a shape."""
    if name == "circle":
        return np.hypot(x, y) < 0.95
    if name == "moon":
        return (np.hypot(x, y) < 0.98) & (np.hypot(x - 0.5, y - 0.1) > 0.75)
    if name == "heart":
        a, b = 1.22 * x, 1.22 * y + 0.12
        return (a**2 + b**2 - 1) ** 3 < a**2 * b**3
    if name == "cross":
        arms = (np.abs(x) < 0.28) | (np.abs(y) < 0.28)
        return arms & (np.maximum(np.abs(x), np.abs(y)) < 0.94)
    if name == "square":
        return np.maximum(np.abs(x), np.abs(y)) < 0.74
    if name == "diamond":
        return np.abs(x) / 0.66 + np.abs(y) < 1
    return _inside_polygon(_corners(name), x, y)


def _corners(name: str) -> Float[np.ndarray, "corners 2"]:
    points = {"triangle": 3, "star": 10}[name]
    angles = np.pi / 2 + 2 * np.pi * np.arange(points) / points
    reach = np.ones(points)
    if name == "star":
        reach[1::2] = 0.42
    return np.stack([reach * np.cos(angles), reach * np.sin(angles)], axis=1)


def _inside_polygon(
    corners: Float[np.ndarray, "corners 2"], x: _Points, y: _Points
) -> Bool[np.ndarray, "side side"]:
    """Count the edges that a ray to the right crosses: inside, they are odd."""
    inside = np.zeros(x.shape, dtype=bool)
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, 1, axis=0), strict=True):
        if y1 != y2:
            crossing = x1 + (y - y1) / (y2 - y1) * (x2 - x1)
            inside ^= ((y1 > y) != (y2 > y)) & (x < crossing)
    return inside
