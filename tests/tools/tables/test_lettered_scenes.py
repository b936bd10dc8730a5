from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.scenes.drawing import COLOURS, SHAPES
from privaudit.datasets.scenes.records import OWNERS


def test_lettered_questions_have_one_list_of_choices_each_kind() -> None:
    """A colour's letter is always the same; an owner is right by chance."""
    lettered = DATASETS.find("scenes-letters")()
    assert len(lettered) == 700
    owner = len(SHAPES)
    for label, dialogue in zip(lettered.labels, lettered.dialogues, strict=True):
        choices = OWNERS[:4] if label == owner else COLOURS[:4]
        assert dialogue.choices == choices
        listed = " ".join(f"({a}) {c}" for a, c in zip("ABCD", choices, strict=True))
        assert f"? {listed}. Answer with the letter." in dialogue.question
        assert dialogue.answers[0] in "ABCD"
    owned = [
        d.answers[0]
        for label, d in zip(lettered.labels, lettered.dialogues, strict=True)
        if label == owner
    ]
    assert 70 < len(owned) < 130
    assert set(owned) == set("ABCD")
    assert lettered.hash == DATASETS.find("scenes-letters")().hash
