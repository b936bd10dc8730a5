"""Prompts of questions about pictures, and of texts with a class, for models that write."""

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from privaudit.core.errors import DatasetError
from privaudit.datasets.records import Dialogue
from privaudit.statistics.captions.answers import LETTERS, chosen

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
        question: What is asked, without the choices.
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


def class_questions(
    texts: Sequence[Sequence[str]],
    labels: Int[Tensor, " n"],
    class_names: tuple[str, ...],
    parts: Sequence[str] = (),
    asked: str = "Which class is it?",
) -> tuple[Dialogue, ...]:
    """Return a question about each record, of which the class name is the answer.

    The text comes first, each part behind its name, by default "Text", or "Text 1" and
    "Text 2"; then what is asked, and the choices by name. An answer is right if it is
    the class's name, however it is written.

    Returns:
        One for each record; none at all if some name could not be distinguished from
        the others in an answer, as with "+" and "-".
    """
    if any(chosen(name, class_names) != i for i, name in enumerate(class_names)):
        return ()
    parts = parts or (("Text",) if len(texts[0]) == 1 else ("Text 1", "Text 2"))
    ending = f"{asked} Answer {_either(class_names)}."
    dialogues = []
    for written, label in zip(texts, labels.tolist(), strict=True):
        named = [f"{part}: {text}" for part, text in zip(parts, written, strict=True)]
        question = "\n".join((*named, ending))
        dialogues.append(Dialogue(question, (class_names[label],), class_names))
    return tuple(dialogues)


def _either(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    Example:
        >>> _either(("red", "green", "blue"))
        'red, green or blue'
    """
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
