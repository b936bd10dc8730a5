"""Caption metrics: tokeniser, BLEU, ROUGE-L and CIDEr-D, with bootstrap intervals.

Source: Papineni, Roukos, Ward, Zhu, "BLEU: a method for automatic evaluation of machine
translation", ACL 2002; the constants against 0/0 and the choice of the reference length
are coco-caption's, whose numbers people print. Lin, "ROUGE: a package for automatic
evaluation of summaries", 2004, equations 2 to 4; as in coco-caption, precision and recall
are each the best over the references, and beta is 1.2. Vedantam, Zitnick, Parikh, "CIDEr:
consensus-based image description evaluation", CVPR 2015, equations 1 to 5. What
coco-caption prints as CIDEr is CIDEr-D, and so are the numbers of most papers; as there,
the length in CIDEr-D's penalty is the number of bigrams.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate, needs, unresolved

Tokens = tuple[str, ...]

DROPPED = frozenset(["'", "`", '"', ".", "?", "!", ",", ":", "...", ";"])
BRACKETS = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
}  # fmt: skip
JOINED = {
    "cannot": ("can", "not"), "gonna": ("gon", "na"), "gotta": ("got", "ta"),
    "wanna": ("wan", "na"), "gimme": ("gim", "me"), "lemme": ("lem", "me"),
    "'tis": ("'t", "is"), "'twas": ("'t", "was"),
}  # fmt: skip
PLAIN = str.maketrans(  # curly quotes, dashes and the ellipsis
    {
        0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"',
        0x2013: " -- ", 0x2014: " -- ", 0x2026: "...",
    }
)  # fmt: skip
# Where a clitic leaves its word: do n't, it 's.
CLITIC = re.compile(
    r"(?<=\w)(?=(?:'(?:s|m|d|re|ve|ll))\b)|(?<=[^\W\d_])(?=n't\b)", re.I
)
TOKEN = re.compile(
    r"""
      https?://\S+ | [\w.]+@[\w.]+\w
    | <[a-z]+>
    | (?:[^\W\d_]\.){2,}(?!\w)                          # u.s.
    | (?:[^\W\d_]|mr|mrs|ms|dr|st|ave|blvd|jr|sr|inc|co|corp|ltd|prof|gen|col|sgt|ph\.d
      |rev|vs|etc|mt|ft|capt|lt)\.(?!\w)
    | no\.(?=\s*\d)                                     # no. 5
    | n't\b | '(?:s|m|d|re|ve|ll|em|n'|tis|twas|\d\ds)(?!\w)
    | o'[^\W\d_]{2,}                                    # o'clock
    | (?:(?<!\S)[-+])?\d+(?:[.,:/]\d+)+ | (?<!\S)[-+]\d+
    | [#@]\w+(?<!\d)
    | (?-i:[A-Z]+&[A-Z]+)                               # AT&T, but at & t
    | \w+(?:[-/.]\w+)*                                  # t-shirt, and/or
    | \.{3} | --+ | [!?]+ | [^\w\s]
    """,
    re.VERBOSE | re.IGNORECASE,
)


def tokenise(caption: str) -> Tokens:
    """Return a caption's words in lower case, none for a text of punctuation.

    This follows the tokeniser behind published numbers, so that numbers compare: the
    Penn Treebank rules of Stanford CoreNLP 3.4.1 in lower case, after which
    coco-caption drops a list of punctuation marks. As there, ``don't`` is two words and
    so is ``dog's``, hyphens and full stops inside a word stay, and what the list misses
    is a word: brackets (written ``-lrb-`` and ``-rrb-``), ``&``, ``#``, ``!!!``.

    Where this differs: CoreNLP knows more abbreviations and decides by the next word
    whether a full stop also ends a sentence; it rewrites fractions and signs of
    currency, keeps smileys and telephone numbers whole, and splits a rare few further
    contractions (``y'all``). The 41,455 captions of Flickr8k and of coco-caption's
    example come out the same from both.

    Source: Chen, Fang, Lin, Vedantam, Gupta, Dollar, Zitnick, "Microsoft COCO captions:
    data collection and evaluation server", 2015, section 4.1.

    Example:
        >>> tokenise("The dog's T-shirt (red) isn't clean.")
        ('the', 'dog', "'s", 't-shirt', '-lrb-', 'red', '-rrb-', 'is', "n't", 'clean')
    """
    text = html.unescape(caption).translate(PLAIN)
    tokens = map(str.lower, TOKEN.findall(CLITIC.sub(" ", text)))
    words = (part for token in tokens for part in JOINED.get(token, (token,)))
    return tuple(
        BRACKETS.get(word, word)
        for word in words
        if word not in DROPPED and word.strip("-")
    )


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


# With these an order without a match gives a tiny value in place of 0.
TINY, SMALL = 1e-15, 1e-9


@dataclass(frozen=True)
class BleuCounts:
    """What BLEU adds up; counts of several images may be added.

    Attributes:
        matches: n-grams of the candidate that are in a reference, each as often as the
            reference that has it most often, by order from 1 to 4.
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
    bits_of: dict[str, int] = {}
    for index, word in enumerate(first):
        bits_of[word] = bits_of.get(word, 0) | 1 << index
    every = (1 << len(first)) - 1
    row = every
    for word in second:
        hit = row & bits_of.get(word, 0)
        row = ((row + hit) | (row - hit)) & every
    return len(first) - row.bit_count()


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


LEAST = 10
"""With fewer records a bootstrap's interval is too narrow to be one."""
REPLICATES, CONFIDENCE = 2000, 0.95
_METHOD = f"bootstrap over {{what}} (BCa, {REPLICATES} replicates)"
CHUNK = 2_000_000
"""Weights that are held at once."""

Statistic = Callable[
    [Float[np.ndarray, "*samples columns"]], Float[np.ndarray, "*samples numbers"]
]


def bootstrap_estimates(
    columns: Float[np.ndarray, "records columns"],
    statistic: Statistic,
    values: Mapping[str, float],
    rng: np.random.Generator,
    models: int,
    records: str,
) -> Mapping[str, Estimate]:
    """Return the mean over models of each number, with an interval over records.

    Args:
        columns: What is added up, for each record.
        statistic: The numbers from sums, for each row.
        values: The numbers of the records as they are: with too few records there is no
            more to say.
        rng: Draws records with replacement.
        models: Whose mean it is.
        records: What is drawn, in a word.
    """
    count = len(columns)
    mean = f"mean of {models} models, " if models > 1 else ""
    method = mean + _METHOD.format(what=records)
    if count < LEAST:
        reason = needs(LEAST, records, count)
        return {
            name: unresolved(reason, (count,), method, CONFIDENCE, value)
            for name, value in values.items()
        }
    ends = bootstrap_sums(columns, statistic, rng).tolist()
    return {
        name: Estimate(value, low, high, (count,), method, CONFIDENCE)
        for name, (value, low, high) in zip(values, ends, strict=True)
    }


def bootstrap_sums(
    columns: Float[np.ndarray, "images columns"],
    statistic: Statistic,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> Float[np.ndarray, "numbers 3"]:
    """Return functions of sums, each with the ends of its BCa bootstrap interval.

    A replicate draws as many images as there are, with replacement: its sums are one
    product of how often each was drawn and the columns. The ends rest on 5 % of them.

    Source: Efron, "Better bootstrap confidence intervals", JASA 82, 1987.
    """
    total = columns.sum(axis=0)
    values = statistic(total)
    images, sums = len(columns), []
    at_once = max(1, CHUNK // images)
    for start in range(0, replicates, at_once):
        rows = min(at_once, replicates - start)
        chosen = rng.integers(0, images, size=(rows, images))
        chosen += images * np.arange(rows)[:, None]
        times = np.bincount(chosen.ravel(), minlength=rows * images)
        sums.append(times.reshape(rows, images) @ columns)
    drawn = statistic(np.concatenate(sums))
    left_out = statistic(total - columns)
    tails = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    ends = [
        np.quantile(drawn[:, i], _levels(values[i], drawn[:, i], left_out[:, i], tails))
        for i in range(len(values))
    ]
    low, high = np.array(ends).T
    return np.stack([values, np.minimum(low, values), np.maximum(high, values)], axis=1)


def _levels(
    value: np.floating,
    drawn: Float[np.ndarray, " replicates"],
    left_out: Float[np.ndarray, " images"],
    tails: Float[np.ndarray, " ends"],
) -> Float[np.ndarray, " ends"]:
    """Return which quantiles of the replicates are the ends of the interval."""
    below = (drawn < value).mean() + (drawn == value).mean() / 2
    apart = left_out.mean() - left_out
    spread = (apart**2).sum()
    if not 0 < below < 1 or spread == 0:  # all alike: nothing to correct by
        return tails
    acceleration = (apart**3).sum() / (6 * spread**1.5)
    bias = ndtri(below)
    moved = bias + ndtri(tails)
    return ndtr(bias + moved / (1 - acceleration * moved))


BLEU = tuple(f"BLEU-{order}" for order in range(1, ORDERS + 1))
MEANS = ("ROUGE-L", "CIDEr-D")
METRICS = (*BLEU, *MEANS)
COLUMNS = 2 * ORDERS + 5


@dataclass(frozen=True)
class CaptionScores:
    """How well captions agree with their references.

    Attributes:
        corpus: Each of ``METRICS`` over all images: BLEU and ROUGE-L from 0 to 1,
            CIDEr-D from 0 to 10.
        per_image: Each of ``MEANS``, the metrics that are means over images.
        counts: What BLEU is computed from, for each image.
    """

    corpus: Mapping[str, float]
    per_image: Mapping[str, Float[np.ndarray, " images"]]
    counts: BleuCounts

    def __len__(self) -> int:
        return len(self.counts.length)


def caption_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]]
) -> CaptionScores:
    """Return every metric of captions.

    CIDEr-D weighs words by how rare they are in *these* references: it is compared
    only on the same images. An empty caption scores 0.

    Example:
        >>> scores = caption_scores(["a dog", "two cats"], [["a dog"], ["some cats"]])
        >>> round(scores.corpus["BLEU-1"], 3), round(scores.corpus["CIDEr-D"], 3)
        (0.75, 3.125)
    """
    corpus = Corpus.of(candidates, references)
    counts = bleu_counts(corpus)
    means = {"ROUGE-L": rouge_l(corpus), "CIDEr-D": cider_d(corpus)}
    whole = dict(zip(BLEU, bleu(counts.summed()).tolist(), strict=True))
    whole |= {name: float(values.mean()) for name, values in means.items()}
    return CaptionScores(whole, means, counts)


def mean_estimates(
    scores: Sequence[CaptionScores], rng: np.random.Generator
) -> Mapping[str, Estimate]:
    """Return the mean over models of each of ``METRICS``, with an interval over images.

    An image is drawn for all models together, since all wrote of the same images. The
    interval is that of other images of the same kind for the same models: seeds and
    clients are not drawn again, and how CIDEr-D weighs words is held fixed.
    """
    counts = [len(score) for score in scores]
    if len(set(counts)) != 1:
        raise ConfigError(
            f"The mean over {len(scores)} models is of the same images, and theirs are "
            f"{counts}. Score at least one model, and all on the same images."
        )
    columns = np.hstack([_columns(score) for score in scores])
    values = {n: float(np.mean([one.corpus[n] for one in scores])) for n in METRICS}
    return bootstrap_estimates(
        columns, _mean_metrics, values, rng, len(scores), "images"
    )


def _columns(scores: CaptionScores) -> Float[np.ndarray, "images 13"]:
    counts = scores.counts
    return np.column_stack(
        [
            counts.matches, counts.totals, counts.length, counts.closest,
            *(scores.per_image[name] for name in MEANS), np.ones(len(scores)),
        ]
    )  # fmt: skip


def _mean_metrics(
    sums: Float[np.ndarray, "*samples columns"],
) -> Float[np.ndarray, "*samples 6"]:
    """Return the metrics of each row of sums, which holds those of every model."""
    sums = sums.reshape(*sums.shape[:-1], -1, COLUMNS)
    matches, totals = sums[..., :ORDERS], sums[..., ORDERS : 2 * ORDERS]
    length, closest = sums[..., 2 * ORDERS], sums[..., 2 * ORDERS + 1]
    means = sums[..., -3:-1] / sums[..., -1:]
    bleu_scores = bleu(BleuCounts(matches, totals, length, closest))
    return np.concatenate([bleu_scores, means], axis=-1).mean(axis=-2)
