"""ROUGE-L.

Source: Lin, "ROUGE: a package for automatic evaluation of summaries", 2004, equations 2
to 4. As in coco-caption, precision and recall are each the best over the references,
and beta is 1.2.
"""

import numpy as np
from jaxtyping import Float

from privaudit.statistics.captions.corpus import Corpus
from privaudit.statistics.captions.tokenisation import Tokens

BETA = 1.2  # how much more recall counts than precision


def rouge_l(corpus: Corpus) -> Float[np.ndarray, " images"]:
    """Return each image's ROUGE-L, from 0 to 1; the corpus' is the mean.

    Example:
        >>> corpus = Corpus.of(["this is a good test"], [["this is a test"]])
        >>> rouge_l(corpus).round(4)
        array([0.9071])
    """
    pairs = zip(corpus.candidates, corpus.references, strict=True)
    return np.array([_one(candidate, refs) for candidate, refs in pairs])


def _one(candidate: Tokens, references: tuple[Tokens, ...]) -> float:
    common = [longest_common(candidate, reference) for reference in references]
    if not any(common):
        return 0.0
    precision = max(common) / len(candidate)
    recall = max(
        shared / len(reference)
        for shared, reference in zip(common, references, strict=True)
        if reference
    )
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def longest_common(first: Tokens, second: Tokens) -> int:
    """Return the length of the longest common subsequence.

    Source: Hyyrö, "Bit-parallel LCS-length computation revisited", AWOCA 2004: a row of
    the table is one integer, in which a bit is 0 where the table goes up by one.

    Example:
        >>> longest_common(("a", "b", "c", "d"), ("b", "x", "d"))
        2
    """
    places: dict[str, int] = {}
    for index, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << index
    every = (1 << len(first)) - 1
    row = every
    for word in second:
        hit = row & places.get(word, 0)
        row = ((row + hit) | (row - hit)) & every
    return len(first) - row.bit_count()
