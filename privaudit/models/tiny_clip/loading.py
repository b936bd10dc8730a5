"""tiny-clip, the CLIP that comes with the package: tokenizer, sizes, and how it is loaded."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from privaudit.models.clip.picture_preparation import Pictures, as_rgb
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.word_tokenizer import WordTokenizer, vocabulary_of
from privaudit.models.registry import ModelRequest
from privaudit.models.tiny_clip.network import SmallCLIP
from privaudit.models.weight_files import load_embedded

CONTEXT_LENGTH = 32
WORDS = """
again also an and arrow at background black blue brown by can capital checked circle
class clearly close coarse cross cyan diamond digit dotted drawing eight example
fading five for four green grey hand handwritten heart here image in is it just kind
letter look moon nine noisy now number of on one only orange photo picture pink
plain printed purple red ring scan scanned see seven shows sign six small some
square star striped symbol that the there thing this three triangle two type very
was we well white with written yellow you zero
"""
"""Of the captions that the weights were trained on, in privaudit_tools.pretraining."""


class TinyTokenizer(WordTokenizer):
    """Turns texts into the token numbers of ``tiny-clip``.

    Example:
        >>> tokenizer = TinyTokenizer()
        >>> len(tokenizer.encode("a photo of the digit five."))
        7
        >>> tokenizer("five").shape
        torch.Size([1, 32])
    """

    def __init__(self) -> None:
        super().__init__(vocabulary_of([WORDS]), CONTEXT_LENGTH)


EMBED_DIM = 64
PICTURE_SIZE = 32  # what it looks at
IMAGE_SIZE = 64  # what its tower gets: doubled, so that attention pools a 2x2 grid


def configuration() -> dict[str, Any]:
    """Say how the model is built: the arguments of open_clip's ``CLIP``."""
    return {
        "embed_dim": EMBED_DIM,
        "vision_cfg": {
            "layers": [1, 1, 1, 1],
            "width": 16,
            "head_width": 64,
            "image_size": IMAGE_SIZE,
        },
        "text_cfg": {
            "context_length": CONTEXT_LENGTH,
            "vocab_size": TinyTokenizer().vocab_size,
            "width": 64,
            "heads": 4,
            "layers": 2,
        },
    }


def build_model(seed: int = 0) -> SmallCLIP:
    """Build the model at random weights.

    They come from torch's global state, which is put back afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCLIP(**configuration())


MEAN, DEVIATION = 0.5, 0.25


def preprocess_batch(
    pictures: Float[Tensor, "n h w"] | Float[Tensor, "n 3 h w"],
) -> Float[Tensor, "n 3 size size"]:
    """Resize to 32x32, double, normalise; pictures that are not square are stretched.

    They are grey or RGB, with values in [0, 1]: scikit-learn's digits divided by 16.
    """
    if pictures.ndim == 3:
        pictures = pictures[:, None].expand(-1, 3, -1, -1)
    small = _resize(pictures.float(), PICTURE_SIZE)
    return (_resize(small, IMAGE_SIZE) - MEAN) / DEVIATION


def _resize(
    pictures: Float[Tensor, "n c h w"], size: int
) -> Float[Tensor, "n c size size"]:
    if pictures.shape[-2:] == (size, size):
        return pictures
    shrinks = max(pictures.shape[-2:]) > size
    return interpolate(
        pictures,
        size=(size, size),
        mode="bilinear",
        align_corners=False,
        antialias=shrinks,
    )


class TinyClip(NamedTuple):
    """The model, and what makes its text tower's tokens."""

    model: SmallCLIP
    tokenizer: TinyTokenizer


def load(folder: Path | None = None) -> TinyClip:
    """Load ``tiny-clip``: frozen, in evaluation mode.

    Args:
        folder: Where its files are; by default those that came with privaudit.
    """
    where = folder or Path(__file__).parent
    return TinyClip(load_embedded(where, "tiny-clip", build_model)[0], TinyTokenizer())


def load_tiny_clip(request: ModelRequest) -> PromptableCLIP:
    """Load ``tiny-clip`` as all other code takes it."""
    model, tokenizer = load()
    return PromptableCLIP(request.name, model.to(request.device), tokenizer, _prepare)


def _prepare(pictures: Pictures) -> Tensor:
    return preprocess_batch(as_rgb(pictures))
