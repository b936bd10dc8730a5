"""Word tokenizer of small models: words it knows are whole, and any other spelled."""

import re
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def vocabulary_of(phrases: Iterable[str]) -> tuple[str, ...]:
    """List every token: padding, characters, ``##`` characters, words, start and end.

    A character that goes on with a word is a token of its own kind, so that "oven"
    and "o ven" differ. The phrases are in lower case, and split at spaces.
    """
    words = sorted({w for phrase in phrases for w in phrase.split() if len(w) > 1})
    characters = [c for c in map(chr, range(33, 127)) if c == c.lower()]  # printable
    going_on = [f"##{c}" for c in characters]
    return ("<pad>", "<unknown>", *characters, *going_on, *words, "<start>", "<end>")


class WordTokenizer:
    """Turns texts into token numbers.

    Texts are lower-cased and split at spaces and around punctuation. A word that is
    not in the vocabulary is spelled. The end token has the highest number, because
    CLIP reads its text features there.

    Example:
        >>> tokenizer = WordTokenizer(vocabulary_of(["a photo of"]), 8)
        >>> [tokenizer.vocabulary[n] for n in tokenizer.encode("a photo of it")]
        ['a', 'photo', 'of', 'i', '##t']
        >>> tokenizer("a photo").shape
        torch.Size([1, 8])
    """

    def __init__(self, vocabulary: Sequence[str], context_length: int) -> None:
        self.vocabulary = tuple(vocabulary)
        self.context_length = context_length
        self._numbers = {token: n for n, token in enumerate(self.vocabulary)}
        self.sot_token_id = self._numbers["<start>"]
        self.eot_token_id = self._numbers["<end>"]
        self.vocab_size = len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        """Number a text's tokens, without start and end."""
        return [number for piece in pieces(text) for number in self._spell(piece)]

    def __call__(
        self, texts: str | Sequence[str], context_length: int | None = None
    ) -> Int[Tensor, "n length"]:
        """Number the tokens of texts: start, text, end, then zeros.

        A text that is too long is cut; the end token stays.
        """
        rows = [texts] if isinstance(texts, str) else texts
        length = context_length or self.context_length
        table = torch.zeros(len(rows), length, dtype=torch.long)
        for row, text in zip(table, rows, strict=True):
            inner = self.encode(text)[: length - 2]
            numbers = [self.sot_token_id, *inner, self.eot_token_id]
            row[: len(numbers)] = torch.tensor(numbers)
        return table

    def _spell(self, piece: str) -> list[int]:
        if piece in self._numbers:
            return [self._numbers[piece]]
        unknown = self._numbers["<unknown>"]
        tokens = [piece[0], *(f"##{character}" for character in piece[1:])]
        return [self._numbers.get(token, unknown) for token in tokens]


def pieces(text: str) -> list[str]:
    """Split a text into words and marks, in lower case."""
    return re.findall(r"[^\W_]+|[^\w\s]|_", text.lower())
