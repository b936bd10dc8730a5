"""How questions about pictures are put to a model."""

from collections.abc import Sequence

from privaudit.core.errors import DatasetError
from privaudit.datasets.dialogues import Dialogue
from privaudit.statistics.captions.exact_match import LETTERS, chosen

DESCRIBE = "Describe the picture."
"""What is asked where a data set has captions and no questions."""

NOTHING = "N/A"
"""What the template writes where there is no context."""


def options(choices: Sequence[str]) -> str:
    """Return choices behind their letters.

    Example:
        >>> options(["red", "blue"])
        '(A) red (B) blue'
    """
    return " ".join(
        f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False)
    )


def multiple_choice(
    question: str, choices: Sequence[str], answer: str, where: str, context: str = ""
) -> Dialogue:
    """Return a question with its context and choices written out.

    The answer that is trained on is the letter.

    Source: Lu, Mishra, Xia, Qiu, Chang, Zhu, Tafjord, Clark, Kalyan, "Learn to explain:
    multimodal reasoning via thought chains for science question answering", NeurIPS
    2022, format CQM-A: context, question, choices.

    Args:
        question: Its text.
        choices: From 2 to 26, none blank; of two that are equal a text means the first.
        answer: A choice's letter or text.
        where: What an error calls the record.
        context: What to know for it; "" writes N/A.
    """
    blank = not all(choice.strip() for choice in choices)
    if blank or not 2 <= len(choices) <= len(LETTERS):
        raise DatasetError(
            f"{where} has the choices {list(choices)}. Give from 2 to {len(LETTERS)}, "
            "and none blank."
        )
    place = chosen(answer, choices)
    if place is None:
        raise DatasetError(
            f"{where} has the answer {answer!r}, which is none of the choices "
            f"{options(choices)}. Give one of them, or its letter."
        )
    text = (
        f"Context: {context.strip() or NOTHING}\nQuestion: {question.strip()}\n"
        f"Options: {options(choices)}"
    )
    return Dialogue(text, (LETTERS[place],), tuple(choices))
