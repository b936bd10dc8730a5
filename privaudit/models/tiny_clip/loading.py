"""Load the embedded model as it was pretrained."""

from pathlib import Path
from typing import NamedTuple

from privaudit.models.tiny_clip.network import SmallCLIP
from privaudit.models.tiny_clip.tokenizer import TinyTokenizer
from privaudit.models.tiny_clip.weights import load_weights

# Chosen on drawn validation pictures; tiny-clip.json holds both templates' accuracy.
DEFAULT_TEMPLATE = "a photo of the digit {}."


class TinyClip(NamedTuple):
    """The model, and what makes its text tower's tokens."""

    model: SmallCLIP
    tokenizer: TinyTokenizer


def load(folder: Path | None = None) -> TinyClip:
    """Load ``tiny-clip``: frozen, in evaluation mode.

    Args:
        folder: Where its files are; by default those that came with privaudit.

    Raises:
        MissingFileError: When one of them is not there.
        ConfigError: When the weights do not have the hash that belongs to them.
    """
    model = load_weights(folder or Path(__file__).parent)
    return TinyClip(model, TinyTokenizer())
