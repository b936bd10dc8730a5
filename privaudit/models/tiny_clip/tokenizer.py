"""A vocabulary small enough for a small model: the captions' words, and characters."""

from privaudit.models.clip.word_tokenizer import WordTokenizer, vocabulary_of
from privaudit.models.tiny_clip import captions, marks

CONTEXT_LENGTH = 32


def _vocabulary() -> tuple[str, ...]:
    return vocabulary_of(
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
        super().__init__(_vocabulary(), CONTEXT_LENGTH)
