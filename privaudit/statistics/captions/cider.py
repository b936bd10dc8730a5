"""CIDEr-D.

Source: Vedantam, Zitnick, Parikh, "CIDEr: consensus-based image description
evaluation", CVPR 2015, equations 1 to 5. What coco-caption prints as CIDEr is CIDEr-D,
and so are the numbers of most papers. As there, the length in CIDEr-D's penalty is the
number of bigrams.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from privaudit.statistics.captions.corpus import ORDERS, Corpus, Counts
from privaudit.statistics.captions.tokenisation import Tokens

SCALE = 10.0
SIGMA = 6.0  # how far lengths may differ, in bigrams


@dataclass(frozen=True)
class Weighted:
    """A caption's n-grams, each weighted by how rare it is.

    Attributes:
        weights: Count times inverse document frequency.
        norms: Length of the vector of each order.
    """

    weights: Mapping[Tokens, float]
    norms: tuple[float, ...]
    bigrams: int


def cider_d(corpus: Corpus) -> Float[np.ndarray, " images"]:
    """Return each image's CIDEr-D, from 0 to 10; the corpus' is the mean.

    Words that stand in the references of every image weigh nothing: a corpus of one
    image scores 0.
    """
    rarity = Rarity(corpus)
    scores = []
    for candidate, references in zip(
        corpus.candidate_counts, corpus.reference_counts, strict=True
    ):
        weighted = rarity.weigh(candidate)
        similarities = [
            _similarity(weighted, rarity.weigh(other)) for other in references
        ]
        scores.append(SCALE * sum(similarities) / len(similarities))
    return np.array(scores)


class Rarity:
    """In how few images' references an n-gram stands."""

    def __init__(self, corpus: Corpus) -> None:
        seen: Counts = Counter()
        for references in corpus.reference_counts:
            seen.update(set().union(*references))
        log_images = math.log(len(corpus.candidates))
        self._unseen = log_images
        self._known = {ngram: log_images - math.log(n) for ngram, n in seen.items()}

    def weigh(self, counts: Counts) -> Weighted:
        """Return a caption's weighted n-grams."""
        weights, squares = {}, [0.0] * ORDERS
        bigrams = 0
        for ngram, count in counts.items():
            weight = count * self._known.get(ngram, self._unseen)
            weights[ngram] = weight
            squares[len(ngram) - 1] += weight * weight
            if len(ngram) == 2:
                bigrams += count
        return Weighted(weights, tuple(map(math.sqrt, squares)), bigrams)


def _similarity(own: Weighted, other: Weighted) -> float:
    """Return the mean cosine over the orders, clipped, and penalised by length."""
    products = [0.0] * ORDERS
    for ngram, weight in own.weights.items():
        there = other.weights.get(ngram)
        if there is not None:
            products[len(ngram) - 1] += min(weight, there) * there
    cosines = (
        product / (a * b) if a and b else 0.0
        for product, a, b in zip(products, own.norms, other.norms, strict=True)
    )
    mean = sum(cosines) / ORDERS
    return mean * math.exp(-(((own.bigrams - other.bigrams) / SIGMA) ** 2) / 2)
