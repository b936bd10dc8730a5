"""Exact match of an answer, however it is written."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.tokenisation import BRACKETS, Tokens, tokenise

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
SAID = re.compile(r"^\s*(?:the\s+)?(?:correct\s+)?answer\s*(?:is|:)\s*", re.IGNORECASE)
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
        place = _place(both[1] or both[2], choices)
        if place is not None and normalise(both[3]) == normalise(choices[place]):
            return place
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
    unknown = next((text for text, place in right.items() if place is None), None)
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
    place = LETTERS.index(letter.upper())
    return place if place < len(choices) else None
