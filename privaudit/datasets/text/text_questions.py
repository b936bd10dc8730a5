"""How texts with a class are put to models that write."""

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from privaudit.datasets.dialogues import Dialogue
from privaudit.statistics.captions.exact_match import chosen


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
