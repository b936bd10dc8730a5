"""BLEU-1 to BLEU-4.

Source: Papineni, Roukos, Ward, Zhu, "BLEU: a method for automatic evaluation of machine
translation", ACL 2002; the constants against 0/0 and the choice of the reference length
are coco-caption's, whose numbers people print.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from privaudit.statistics.captions.corpus import ORDERS, Corpus, Counts

# With these an order without a match gives a tiny value in place of 0.
TINY, SMALL = 1e-15, 1e-9


@dataclass(frozen=True)
class BleuCounts:
    """What BLEU adds up; counts of several images may be added.

    Attributes:
        matches: n-grams of the candidate that are in a reference, each as often as the
            reference that has it most often, by order from 1 to 4.
        totals: n-grams of the candidate.
        length: Words of the candidate.
        closest: Words of the reference nearest in length; of two as near, the shorter.
    """

    matches: Float[np.ndarray, "*images 4"]
    totals: Float[np.ndarray, "*images 4"]
    length: Float[np.ndarray, "*images"]
    closest: Float[np.ndarray, "*images"]

    def summed(self) -> "BleuCounts":
        """Return the counts of all images together."""
        parts = (self.matches, self.totals, self.length, self.closest)
        return BleuCounts(*(np.asarray(part.sum(axis=0)) for part in parts))


def bleu_counts(corpus: Corpus) -> BleuCounts:
    """Return the counts of each image."""
    matches = [
        _matches(counts, refs)
        for counts, refs in zip(
            corpus.candidate_counts, corpus.reference_counts, strict=True
        )
    ]
    lengths = np.array([len(tokens) for tokens in corpus.candidates], np.float64)
    closest = [
        min((abs(len(ref) - len(tokens)), len(ref)) for ref in refs)[1]
        for tokens, refs in zip(corpus.candidates, corpus.references, strict=True)
    ]
    totals = np.maximum(lengths[:, None] - np.arange(ORDERS), 0.0)
    return BleuCounts(np.array(matches), totals, lengths, np.array(closest, np.float64))


def bleu(counts: BleuCounts) -> Float[np.ndarray, "*images 4"]:
    """Return BLEU-1 to BLEU-4 of each row of counts, from 0 to 1.

    A corpus' BLEU is that of the summed counts, not the mean over images.

    Example:
        >>> corpus = Corpus.of(["this is a good test"], [["this is a test"]])
        >>> bleu(bleu_counts(corpus).summed()).round(3)
        array([0.8  , 0.632, 0.511, 0.   ])
    """
    precision = (counts.matches + TINY) / (counts.totals + SMALL)
    order = np.arange(1, ORDERS + 1)
    geometric = np.cumprod(precision, axis=-1) ** (1 / order)
    ratio = (counts.length + TINY) / (counts.closest + SMALL)
    brevity = np.exp(np.minimum(0.0, 1 - 1 / ratio))
    return geometric * brevity[..., None]


def _matches(candidate: Counts, references: list[Counts]) -> list[float]:
    matches = [0.0] * ORDERS
    for ngram, count in candidate.items():
        most = max(reference.get(ngram, 0) for reference in references)
        matches[len(ngram) - 1] += min(count, most)
    return matches
