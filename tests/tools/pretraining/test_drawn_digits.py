"""The digits and words that the package holds are those that were drawn and written."""

import numpy as np
import torch

from privaudit.datasets.dataset import PixelImages
from privaudit.datasets.images.digits import drawn_digits
from privaudit.models.clip.word_tokenizer import vocabulary_of
from privaudit.models.tiny_clip.loading import TinyTokenizer
from privaudit_tools.pretraining import captions, marks
from privaudit_tools.pretraining.drawn_digits import draw_digits


def test_the_package_holds_what_is_drawn() -> None:
    images = drawn_digits().images
    assert isinstance(images, PixelImages)
    stored = (images.pixels[:, 0] * 16).to(torch.uint8).numpy()
    assert np.mean(stored != draw_digits()) < 0.001  # on another processor a few points


def test_the_tokenizer_knows_the_words_that_are_written() -> None:
    written = vocabulary_of(
        [
            *captions.OPENINGS,
            *captions.SCAN_OPENINGS,
            *captions.CHATTER,
            *captions.COLOURS,
            *captions.TEXTURES,
            *captions.MANNERS,
            *marks.DIGITS,
            *marks.SHAPES,
            "the capital small letter digit number on a an background",
            "an example one two of class type kind thing sign symbol written by hand",
        ]
    )
    assert TinyTokenizer().vocabulary == written
