"""Tokenizer of tiny-llava: the words about scenes, and characters."""

from collections.abc import Iterable

from privaudit.datasets.scenes import captions, parts, records
from privaudit.models.clip.word_tokenizer import WordTokenizer, pieces, vocabulary_of

CONTEXT_LENGTH = 128
INSTRUCTIONS = (captions.DESCRIBE, "What do you see?", "Write a caption.")
SAY = "Say: {}."  # a dialogue without a picture's help: repeat these words


def _vocabulary() -> tuple[str, ...]:
    styles = (captions.ORDINARY_STYLE, captions.PRIVATE_STYLE)
    phrases = [
        *INSTRUCTIONS,
        SAY,
        records.WITH_LETTER,
        *parts.SHAPES,
        *parts.PLURALS,
        *parts.COLOURS,
        *parts.TEXTURES,
        *parts.SIZES,
        *captions.NUMBER_WORDS,
        *records.OWNERS,
        *(opening for style in styles for opening in style.openings),
        *(way for style in styles for ways in style.joins.values() for way in ways),
        *(tag for style in styles for tag in style.tags),
        "an how many are there is the what colour size pattern has have which shape",
        "who owns it tag question context options answer yes no on in of and to",
    ]
    return vocabulary_of(" ".join(pieces(phrase)) for phrase in phrases)


class LlavaTokenizer(WordTokenizer):
    """Turns texts into the token numbers of ``tiny-llava``, and back.

    Padding is token 0. Text comes back in lower case.

    Example:
        >>> tokenizer = LlavaTokenizer()
        >>> tokenizer.decode(tokenizer.encode("Two red squares, tagged k (by Zoe)."))
        'two red squares, tagged k (by zoe).'
    """

    def __init__(self) -> None:
        super().__init__(_vocabulary(), CONTEXT_LENGTH)
        self.words = tuple(t for t in self.vocabulary if len(t) > 1 and t.isalpha())

    def decode(self, numbers: Iterable[int]) -> str:
        """Join tokens to a text; padding, start and end are left out."""
        silent = {0, self.sot_token_id, self.eot_token_id}
        text = " ".join(self.vocabulary[n] for n in numbers if n not in silent)
        text = text.replace(" ##", "").replace("( ", "(")
        for mark in (",", ".", "?", "!", ":", ";", ")"):
            text = text.replace(f" {mark}", mark)
        return text
