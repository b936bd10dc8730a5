"""Captions beside their references, as words, and their n-grams."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.tokenisation import Tokens, tokenise

ORDERS = 4
"""The longest n-gram that a metric counts."""

Counts = Counter[Tokens]


def count_ngrams(tokens: Tokens) -> Counts:
    """Return how often each n-gram of one to ``ORDERS`` words is there.

    Example:
        >>> count_ngrams(("a", "dog", "a"))[("a",)]
        2
    """
    size = len(tokens)
    return Counter(
        tokens[start : start + order]
        for order in range(1, ORDERS + 1)
        for start in range(size - order + 1)
    )


@dataclass(frozen=True)
class Corpus:
    """One candidate for each image, and its references.

    Attributes:
        candidates: What a model wrote; without words it scores nothing.
        references: What people wrote, one or more for each image.

    Raises:
        ConfigError: There is no image, the two differ in length, or an image has no
            reference.
    """

    candidates: tuple[Tokens, ...]
    references: tuple[tuple[Tokens, ...], ...]

    def __post_init__(self) -> None:
        if not self.candidates or len(self.candidates) != len(self.references):
            raise ConfigError(
                f"There are {len(self.candidates)} captions and references for "
                f"{len(self.references)} images. Give one caption for each image, and "
                "at least one image."
            )
        gone = next((i for i, refs in enumerate(self.references) if not refs), None)
        if gone is not None:
            raise ConfigError(
                f"Image {gone} of {len(self.references)} has no reference. Give it "
                "one, or leave its caption out."
            )

    @classmethod
    def of(
        cls, candidates: Sequence[str], references: Sequence[Sequence[str]]
    ) -> "Corpus":
        """Return the corpus of captions as they were written."""
        if any(isinstance(refs, str) for refs in references):
            raise ConfigError(
                "The references of an image are a list, and one here is a string. Put "
                "it into a list."
            )
        return cls(
            tuple(map(tokenise, candidates)),
            tuple(tuple(map(tokenise, refs)) for refs in references),
        )

    @cached_property
    def candidate_counts(self) -> list[Counts]:
        """The n-grams of each candidate."""
        return [count_ngrams(tokens) for tokens in self.candidates]

    @cached_property
    def reference_counts(self) -> list[list[Counts]]:
        """The n-grams of each reference of each image."""
        return [[count_ngrams(tokens) for tokens in refs] for refs in self.references]
