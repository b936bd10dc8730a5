"""The fixed family of classifiers from which the blind attacker takes the best.

A control is as good as its strongest attacker: one linear model on one kind of features
misses shifts that another classifier sees. Which one is best is found by
cross-validation within the records it may learn from, so that the choice costs nothing
where there is nothing to find.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.core.errors import ConfigError

INNER_FOLDS = 3
STRENGTH = 1.0  # of the ridge, as scikit-learn has it, on features of unit variance
SHARPNESS = 10.0  # the same for tf-idf, whose rows have length 1
COMPONENTS = 16  # of the features, for trees
MOST_TERMS = 50_000
FEWEST_FOR_TREES = 1000  # records; of fewer, leaves of twenty hold next to nothing

Known = Int[np.ndarray, " known"]
Asked = Int[np.ndarray, " asked"]
Scorer = Callable[[Known, Bool[np.ndarray, " known"], Asked], np.ndarray]
"""Takes rows to learn from, which of them are members, and rows to score."""


@dataclass(frozen=True)
class BlindFamily:
    """What anybody can compute of records, and who can learn from it.

    No step but the classifiers' sees who is a member.

    Attributes:
        features: Of a public model, or any others; [records, 0] where there are none.
        texts: What is said of each record; empty where nothing is.
    """

    features: Float[np.ndarray, "records columns"]
    texts: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what no classifier can read.

        Raises:
            ConfigError: A feature is not finite, texts are not one for each record, or
            there is nothing to read.
        """
        if not self.features.shape[1] and not self.texts:
            raise ConfigError(
                "Records without features and without texts were given, so that there "
                "is nothing to tell them by. Give one or the other."
            )
        bad = int((~np.isfinite(self.features)).any(axis=1).sum())
        if bad:
            raise ConfigError(
                f"Features must be finite, and those of {bad} of {len(self.features)} "
                "records are not. Leave these records out, or fix what computes them."
            )
        if self.texts and len(self.texts) != len(self.features):
            raise ConfigError(
                f"There are {len(self.texts)} texts for {len(self.features)} records. "
                "Give each record one, or none at all."
            )

    @cached_property
    def scorers(self) -> dict[str, Scorer]:
        """The family by name, the simplest first."""
        family: dict[str, Scorer] = {}
        if self.features.shape[1]:
            family["features"] = self._by_features
        if self.texts:
            family["words"] = _linear(_tf_idf(self.texts, _words_and_pairs))
            family["characters"] = _linear(_tf_idf(self.texts, None))
        if len(self.features) >= FEWEST_FOR_TREES:
            family["trees"] = self._by_trees
        return family

    def best(self, known: Known, is_member: Bool[np.ndarray, " known"]) -> str:
        """Return who tells held-out parts of the known records best, by AUROC.

        The first, where the records are too few to hold any out.
        """
        from sklearn.metrics import roc_auc_score
        from sklearn.model_selection import StratifiedKFold

        names = list(self.scorers)
        fewer = min(is_member.sum(), (~is_member).sum())
        if len(names) == 1 or fewer < 2 * INNER_FOLDS:
            return names[0]
        parts = list(StratifiedKFold(INNER_FOLDS).split(known, is_member))
        found = [
            np.mean([
                roc_auc_score(
                    is_member[out],
                    self.scorers[name](known[within], is_member[within], known[out]),
                )
                for within, out in parts
            ])
            for name in names
        ]  # fmt: skip
        return names[int(np.argmax(found))]

    def score(
        self, known: Known, is_member: Bool[np.ndarray, " known"], asked: Asked
    ) -> Float[np.ndarray, " asked"]:
        """Return how much like a member the best of the family finds each asked row."""
        chosen = self.scorers[self.best(known, is_member)]
        return chosen(known, is_member, asked)

    def _by_features(
        self, known: Known, is_member: Bool[np.ndarray, " known"], asked: Asked
    ) -> Float[np.ndarray, " asked"]:
        from sklearn.linear_model import LogisticRegression

        mean = self.features[known].mean(axis=0)
        spread = self.features[known].std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        fit = LogisticRegression(C=STRENGTH, max_iter=10_000)
        fit.fit((self.features[known] - mean) / scale, is_member)
        return np.asarray(fit.decision_function((self.features[asked] - mean) / scale))

    def _by_trees(
        self, known: Known, is_member: Bool[np.ndarray, " known"], asked: Asked
    ) -> Float[np.ndarray, " asked"]:
        from sklearn.ensemble import HistGradientBoostingClassifier

        fit = HistGradientBoostingClassifier(
            max_iter=60, early_stopping=False, random_state=0
        )
        fit.fit(self._few[known], is_member)
        return np.asarray(fit.decision_function(self._few[asked]))

    @cached_property
    def _few(self) -> Float[np.ndarray, "records columns"]:
        """The features' first components, and what texts look like."""
        columns = [_looks(self.texts)] if self.texts else []
        if self.features.shape[1]:
            columns.append(_components(self.features))
        return np.concatenate(columns, axis=1)


def _components(
    features: Float[np.ndarray, "records columns"],
) -> Float[np.ndarray, "records few"]:
    if features.shape[1] <= COMPONENTS:
        return features
    from sklearn.decomposition import PCA

    count = min(COMPONENTS, len(features))
    fit = PCA(count, svd_solver="full")
    return np.asarray(fit.fit_transform(features))


def _looks(texts: Sequence[str]) -> Float[np.ndarray, "texts columns"]:
    """Return lengths and shares of kinds of characters."""
    rows = []
    for text in texts:
        length, words = max(1, len(text)), text.split()
        kinds = (str.isupper, str.isdigit, str.isspace, str.isalpha)
        shares = [sum(map(kind, text)) / length for kind in kinds]
        mean = sum(map(len, words)) / max(1, len(words))
        rows.append([len(text), len(words), mean, *shares, not text.isascii()])
    return np.array(rows, dtype=np.float64)


def _tf_idf(
    texts: Sequence[str], analyzer: Callable[[str], list[str]] | None
) -> Any:  # a sparse matrix
    from sklearn.feature_extraction.text import TfidfVectorizer

    options: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 5)}
    if analyzer is not None:
        options = {"analyzer": analyzer}
    vectorizer = TfidfVectorizer(sublinear_tf=True, max_features=MOST_TERMS, **options)
    try:
        return vectorizer.fit_transform(texts)
    except ValueError:  # no text holds a word
        return np.zeros((len(texts), 1))


def _linear(rows: Any) -> Scorer:
    def score(
        known: Known, is_member: Bool[np.ndarray, " known"], asked: Asked
    ) -> Float[np.ndarray, " asked"]:
        from sklearn.linear_model import LogisticRegression

        fit = LogisticRegression(C=SHARPNESS, solver="liblinear")
        fit.fit(rows[known], is_member)
        return np.asarray(fit.decision_function(rows[asked]))

    return score


def _words_and_pairs(text: str) -> list[str]:
    """Return a text's words and pairs of neighbours.

    Some data sets differ in which colour goes with which shape, hardly in words.
    """
    from privaudit.models.clip.word_tokenizer import pieces

    words = pieces(text.lower())
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]


def joined(
    members: Shaped[np.ndarray, "members columns"],
    others: Shaped[np.ndarray, "others more"],
) -> tuple[Float[np.ndarray, "records columns"], Bool[np.ndarray, " records"]]:
    """Return both kinds' features, and who is a member.

    Raises:
        ConfigError: Columns differ.
    """
    if members.shape[1] != others.shape[1]:
        raise ConfigError(
            f"Members have {members.shape[1]} features and non-members "
            f"{others.shape[1]}. Compute the same ones of both."
        )
    features = np.concatenate([members, others]).astype(np.float64)
    return features, np.repeat([True, False], [len(members), len(others)])
