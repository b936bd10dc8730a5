"""Caption metrics of a model, all at once, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.bleu import BleuCounts, bleu, bleu_counts
from privaudit.statistics.captions.bootstrap import bootstrap_estimates
from privaudit.statistics.captions.cider import cider_d
from privaudit.statistics.captions.corpus import ORDERS, Corpus
from privaudit.statistics.captions.rouge import rouge_l
from privaudit.statistics.estimate import Estimate

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
    models = sums.reshape(*sums.shape[:-1], -1, COLUMNS)
    return _metrics(models).mean(axis=-2)


def _metrics(sums: Float[np.ndarray, "*samples 13"]) -> Float[np.ndarray, "*samples 6"]:
    matches, totals = sums[..., :ORDERS], sums[..., ORDERS : 2 * ORDERS]
    length, closest = sums[..., 2 * ORDERS], sums[..., 2 * ORDERS + 1]
    means = sums[..., -3:-1] / sums[..., -1:]
    bleu_scores = bleu(BleuCounts(matches, totals, length, closest))
    return np.concatenate([bleu_scores, means], axis=-1)
