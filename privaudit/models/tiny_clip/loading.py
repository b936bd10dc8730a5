"""tiny-clip, the CLIP that comes with the package, as it was pretrained."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from privaudit.models.clip.picture_preparation import Pictures, as_rgb
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.registry import ModelRequest
from privaudit.models.tiny_clip.architecture import build_model
from privaudit.models.tiny_clip.network import SmallCLIP
from privaudit.models.tiny_clip.preprocessing import preprocess_batch
from privaudit.models.tiny_clip.tokenizer import TinyTokenizer
from privaudit.models.weight_files import load_embedded

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
    where = folder or Path(__file__).parent
    return TinyClip(load_embedded(where, "tiny-clip", build_model)[0], TinyTokenizer())


def load_tiny_clip(request: ModelRequest) -> PromptableCLIP:
    """Load ``tiny-clip`` as all other code takes it."""
    model, tokenizer = load()
    return PromptableCLIP(request.name, model.to(request.device), tokenizer, _prepare)


def _prepare(pictures: Pictures) -> Tensor:
    return preprocess_batch(as_rgb(pictures))
