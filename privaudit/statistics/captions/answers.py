"""Metrics of short answers: exact match, however written, and SQuAD's two scores.

Source of SQuAD's, words in common and the very same words: Rajpurkar, Zhang, Lopyrev,
Liang, "SQuAD: 100,000+ questions for machine comprehension of text", EMNLP 2016, section
6.1; Rajpurkar, Jia, Liang, "Know what you don't know: unanswerable questions for SQuAD",
ACL 2018. The rules are those of the official script of version 2.0.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.scores import (
    BRACKETS,
    Tokens,
    bootstrap_estimates,
    tokenise,
)
from privaudit.statistics.estimate import Estimate

ARTICLES = frozenset(("a", "an", "the"))
NUMBERS = dict(
    zip(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight",
         "nine", "ten"),
        map(str, range(11)),
        strict=True,
    )
)  # fmt: skip
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SAID = re.compile(
    r"^\s*(?:the\s+)?(?:correct\s+)?answer\s*(?:is\s*:?|:)\s*", re.IGNORECASE
)
LETTER = re.compile(r"^\s*\(?([A-Za-z])\)?\s*[.,:;)]*\s*$")
LETTER_AND_TEXT = re.compile(r"^\s*(?:\(([A-Za-z])\)|([A-Za-z])[.:)])\s*(\S.*)$", re.S)


def normalise(answer: str) -> Tokens:
    """Return an answer's words without articles, and small numbers in digits.

    An answer of articles alone, such as the blood group A, keeps them.

    Source: Antol et al., "VQA: visual question answering", ICCV 2015, section 3 (the
    answer's processing); words are those of the caption metrics.

    Example:
        >>> normalise("The two dogs.")
        ('2', 'dogs')
    """
    words = [word for word in tokenise(answer) if word not in BRACKETS.values()]
    without_articles = [word for word in words if word not in ARTICLES] or words
    return tuple(NUMBERS.get(word, word) for word in without_articles)


def chosen(answer: str, choices: Sequence[str]) -> int | None:
    """Return which choice an answer names, by letter or text; None if it names none.

    A letter alone is a letter, also where some choice's text is that letter. In
    ``(A) red`` the letter counts only if the text is that choice's, and likewise in
    ``A. red``.

    Args:
        answer: Such as ``B``, ``(b)``, ``The answer is B.``, ``(B) red`` or ``red``.
        choices: Their texts, in the order of their letters.
    """
    answer = SAID.sub("", answer, count=1)
    if alone := LETTER.match(answer):
        return _place(alone[1], choices)
    if both := LETTER_AND_TEXT.match(answer):
        number = _place(both[1] or both[2], choices)
        if number is not None and normalise(both[3]) == normalise(choices[number]):
            return number
    texts = [normalise(choice) for choice in choices]
    words = normalise(answer)
    return texts.index(words) if words and words in texts else None


def exact_match(
    answer: str, references: Sequence[str], choices: Sequence[str] = ()
) -> bool:
    """Return whether an answer is one of the references.

    With the choices of a multiple-choice question, both are letters or texts of them.

    Raises:
        ConfigError: There are choices, and a reference is none of them.

    Example:
        >>> exact_match("Red.", ["red"])
        True
        >>> exact_match("(B)", ["blue"], choices=["red", "blue"])
        True
    """
    if not choices:
        words = normalise(answer)
        return bool(words) and words in map(normalise, references)
    right = {reference: chosen(reference, choices) for reference in references}
    unknown = next((text for text, number in right.items() if number is None), None)
    if unknown is not None:
        raise ConfigError(
            f"The answer {unknown!r} is none of the choices {', '.join(choices)}. Give "
            "one of them, or its letter."
        )
    return chosen(answer, choices) in right.values()


def exact_matches(
    answers: Sequence[str],
    references: Sequence[Sequence[str]],
    choices: Sequence[Sequence[str]],
) -> Bool[np.ndarray, " records"]:
    """Return which answers are right, one a question.

    Raises:
        ConfigError: There are not as many answers as questions, or as
            :func:`exact_match`.
    """
    check_answers(answers, references)
    questions = zip(answers, references, choices, strict=True)
    return np.array([exact_match(*one) for one in questions], bool)


def check_answers(answers: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError unless there are as many answers as questions."""
    if len(answers) != len(references):
        raise ConfigError(
            f"There are {len(answers)} answers to {len(references)} questions. Give one "
            "for each."
        )


def _place(letter: str, choices: Sequence[str]) -> int | None:
    number = LETTERS.index(letter.upper())
    return number if number < len(choices) else None


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
