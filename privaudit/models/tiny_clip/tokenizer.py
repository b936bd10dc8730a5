"""A vocabulary small enough for a small model: the captions' words, and characters."""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.models.tiny_clip import captions, marks

CONTEXT_LENGTH = 32
_PRINTABLE = "".join(map(chr, range(33, 127)))


def _vocabulary() -> tuple[str, ...]:
    """List every token: padding, characters, ``##`` characters, words, start and end.

    A character that goes on with a word is a token of its own kind, so that "oven"
    and "o ven" differ.
    """
    phrases = [
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
    words = sorted({w for phrase in phrases for w in phrase.split() if len(w) > 1})
    characters = [c for c in _PRINTABLE if c == c.lower()]
    going_on = [f"##{c}" for c in characters]
    return ("<pad>", "<unknown>", *characters, *going_on, *words, "<start>", "<end>")


class TinyTokenizer:
    """Turns texts into the token numbers of ``tiny-clip``.

    Texts are lower-cased and split at spaces and around punctuation. A word that is
    not in the vocabulary is spelled. The end token has the highest number, because
    CLIP reads its text features there.

    Example:
        >>> tokenizer = TinyTokenizer()
        >>> len(tokenizer.encode("a photo of the digit five."))
        7
        >>> tokenizer("five").shape
        torch.Size([1, 32])
    """

    def __init__(self) -> None:
        self.vocabulary = _vocabulary()
        self._numbers = {token: n for n, token in enumerate(self.vocabulary)}
        self.sot_token_id = self._numbers["<start>"]
        self.eot_token_id = self._numbers["<end>"]
        self.vocab_size = len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """Number a text's tokens, without start and end."""
        pieces = re.findall(r"[^\W_]+|[^\w\s]|_", text.lower())
        return [number for piece in pieces for number in self._spell(piece)]

    def __call__(
        self, texts: str | Sequence[str], context_length: int = CONTEXT_LENGTH
    ) -> Int[Tensor, "n length"]:
        """Number the tokens of texts: start, text, end, then zeros.

        A text that is too long is cut; the end token stays.
        """
        rows = [texts] if isinstance(texts, str) else texts
        table = torch.zeros(len(rows), context_length, dtype=torch.long)
        for row, text in zip(table, rows, strict=True):
            inner = self.encode(text)[: context_length - 2]
            numbers = [self.sot_token_id, *inner, self.eot_token_id]
            row[: len(numbers)] = torch.tensor(numbers)
        return table

    def _spell(self, piece: str) -> list[int]:
        if piece in self._numbers:
            return [self._numbers[piece]]
        unknown = self._numbers["<unknown>"]
        tokens = [piece[0], *(f"##{character}" for character in piece[1:])]
        return [self._numbers.get(token, unknown) for token in tokens]
