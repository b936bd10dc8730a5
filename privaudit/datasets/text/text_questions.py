"""How texts with a class are put to models that write."""

from collections.abc import Sequence

from privaudit.datasets.dialogues import Dialogue
from privaudit.statistics.captions.exact_match import chosen


def class_questions(
    texts: Sequence[Sequence[str]],
    parts: Sequence[str],
    asked: str,
    answers: Sequence[str],
    class_names: tuple[str, ...],
) -> tuple[Dialogue, ...]:
    """Return a question about each record, of which the class name is the answer.

    The text comes first, each part behind its name; then what is asked, and the choices
    by name. An answer is right if it is the class's name, however it is written.

    Returns:
        One for each record; none at all if some name could not be distinguished from
        the others in an answer, as with "+" and "-".
    """
    if any(chosen(name, class_names) != i for i, name in enumerate(class_names)):
        return ()
    ending = f"{asked} Answer {_either(class_names)}."
    return tuple(
        Dialogue(
            "\n".join((*_named(parts, record_texts), ending)), (answer,), class_names
        )
        for record_texts, answer in zip(texts, answers, strict=True)
    )


def _named(parts: Sequence[str], texts: Sequence[str]) -> list[str]:
    return [f"{part}: {text}" for part, text in zip(parts, texts, strict=True)]


def _either(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    Example:
        >>> _either(("red", "green", "blue"))
        'red, green or blue'
    """
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
