"""SQuAD's two scores of short answers: words in common, and the very same words.

Source: Rajpurkar, Zhang, Lopyrev, Liang, "SQuAD: 100,000+ questions for machine
comprehension of text", EMNLP 2016, section 6.1; Rajpurkar, Jia, Liang, "Know what you
don't know: unanswerable questions for SQuAD", ACL 2018. The rules are those of the
official script of version 2.0.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from privaudit.statistics.captions.bootstrap import bootstrap_estimates
from privaudit.statistics.captions.exact_match import check_answers
from privaudit.statistics.captions.tokenisation import Tokens
from privaudit.statistics.estimate import Estimate

F1 = "F1"
UNANSWERABLE = "unanswerable"
"""What a model writes where the text does not answer the question."""

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_UNMARKED = str.maketrans("", "", string.punctuation)


def plain_words(answer: str) -> Tokens:
    """Return the words that count: in lower case, without punctuation or articles.

    Punctuation is ASCII's, and is taken out first, so that ``U.S.`` is one word.

    Example:
        >>> plain_words("The U.S. Army's tank")
        ('us', 'armys', 'tank')
    """
    return tuple(_ARTICLE.sub(" ", answer.lower().translate(_UNMARKED)).split())


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the F1 of the words in common with the best of the references, 0 to 1.

    A word counts as often as it is there. "Unanswerable", and a text without words,
    is all or nothing: it is right where the reference says the same. (The official
    script has an empty text in place of the word.)

    Example:
        >>> token_f1("the dark blue sea", ["blue sea", "water"])
        0.8
    """
    words = plain_words(answer)
    return max(_f1(words, reference) for reference in _worded(references))


def same_words(answer: str, references: Sequence[str]) -> bool:
    """Return whether the words that count are those of some reference, in order.

    Example:
        >>> same_words("The blue sea!", ["blue sea"])
        True
    """
    return plain_words(answer) in _worded(references)


def short_answer_scores(
    answers: Sequence[str], references: Sequence[Sequence[str]]
) -> Float[np.ndarray, "2 records"]:
    """Return F1 and exact match of each answer, one to each question."""
    check_answers(answers, references)
    pairs = list(zip(answers, references, strict=True))
    return np.array(
        [[score(*pair) for pair in pairs] for score in (token_f1, same_words)], float
    )


def mean_short_answers(
    scores: Float[np.ndarray, "models numbers records"],
    names: Sequence[str],
    rng: np.random.Generator,
) -> Mapping[str, Estimate]:
    """Return the mean over models and records of each number, by its name.

    The interval is that of other records for the same models: a record is drawn for all
    of them together.
    """
    models, _, records = scores.shape
    means = scores.mean(axis=0).T
    values = dict(zip(names, means.mean(axis=0).tolist(), strict=True))
    return bootstrap_estimates(
        means, lambda s: s / records, values, rng, models, "records"
    )


def _worded(references: Sequence[str]) -> list[Tokens]:
    """Return the words of references; one without any counts where all are so."""
    return [words for words in map(plain_words, references) if words] or [()]


def _f1(answer: Tokens, reference: Tokens) -> float:
    if not answer or not reference or (UNANSWERABLE,) in (answer, reference):
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))
