"""Letters and digits of three by five pixels, for the tags in pictures' corners."""

import numpy as np
from jaxtyping import Float

# Five rows of three pixels; each row is the sum of 4 (left), 2 and 1 (right).
_GLYPHS = {
    "a": "25755", "b": "65656", "c": "34443", "d": "65556", "e": "74647",
    "f": "74644", "g": "34553", "h": "55755", "i": "72227", "j": "11152",
    "k": "55655", "l": "44447", "m": "57755", "n": "65555", "o": "25552",
    "p": "65644", "q": "25531", "r": "65655", "s": "34216", "t": "72222",
    "u": "55553", "v": "55522", "w": "55775", "x": "55255", "y": "55222",
    "z": "71247", "0": "75557", "1": "26227", "2": "71747", "3": "71717",
    "4": "55711", "5": "74717", "6": "74757", "7": "71122", "8": "75757",
    "9": "75717",
}  # fmt: skip
HEIGHT = 7  # a rim of one pixel around the letters
_GAP = np.zeros((5, 1))
_DOTS = {
    character: np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in rows])
    for character, rows in _GLYPHS.items()
}
_DOTS[" "] = _GAP


def write(text: str) -> Float[np.ndarray, "7 width"]:
    """Return a text as pixels, 1 where there is ink, in a rim of 0.

    Args:
        text: Small letters and digits; a space is two pixels wide.
    """
    parts = [_GAP, *(part for c in text for part in (_DOTS[c], _GAP))]
    width = sum(part.shape[1] for part in parts)
    picture = np.zeros((HEIGHT, width), dtype=np.float32)
    picture[1:-1] = np.concatenate(parts, axis=1)
    return picture
