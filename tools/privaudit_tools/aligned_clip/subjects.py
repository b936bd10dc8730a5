"""``python -m privaudit_tools.aligned_clip.subjects FOLDER OUT.npz``: subjects as classes.

FOLDER is a ``caption-bank`` with all captions of its pictures; OUT.npz a ``feature-bank`` of
the pictures whose people agree on what is shown.
"""

import argparse
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.datasets.dataset import FeatureBank
from privaudit.runs.own_files import write_output
from privaudit.statistics.captions.scores import tokenise
from privaudit_tools.data_sets.caption_bank import read_caption_bank

SUBJECTS = {
    "dog": ("dog", "dogs", "puppy"),
    "man": ("man", "men", "guy"),
    "woman": ("woman", "women", "lady"),
    "boy": ("boy", "boys"),
    "girl": ("girl", "girls"),
    "child": ("child", "children", "kid", "kids", "baby", "toddler"),
    "crowd": ("people", "crowd", "group"),
}
AGREED = 3  # captions of a picture's five
_NAMED = {word: name for name, words in SUBJECTS.items() for word in words}
_PARTS = ("val", "train", "train", "test", "test")  # of five pictures of a class


def subject(captions: Sequence[str]) -> str | None:
    """Return what most captions name first, or None where fewer than three agree.

    Example:
        >>> subject(["A dog and a man", "The dogs run", "puppy", "a man", "men"])
        'dog'
        >>> subject(["a dog", "a dog", "a man", "a man", "snow"]) is None
        True
    """
    firsts = (
        next((_NAMED[word] for word in tokenise(caption) if word in _NAMED), None)
        for caption in captions
    )
    votes = Counter(name for name in firsts if name)
    name, count = next(iter(votes.most_common(1)), (None, 0))
    return name if count >= AGREED else None


def parts(labels: Int[np.ndarray, " n"], seed: int = 0) -> list[str]:
    """Return each picture's split: of each class a fifth is public, two are trained on."""
    drawn = np.random.default_rng(seed)
    found = [""] * len(labels)
    for label in np.unique(labels):
        for place, row in enumerate(drawn.permutation(np.flatnonzero(labels == label))):
            found[row] = _PARTS[place % len(_PARTS)]
    return found


def write_subjects(folder: Path, out: Path) -> int:
    """Write the bank of a folder's subjects, and return how many pictures it has.

    Raises:
        DatasetError: The folder is no bank of captions.
        ConfigError: No picture has a subject that its captions agree on.
        StorageError: ``out`` is no place for it, or holds data already.
    """
    dataset = read_caption_bank(folder)
    assert isinstance(dataset.images, FeatureBank)
    assert dataset.dialogues is not None
    named = [subject(dialogue.answers) for dialogue in dataset.dialogues]
    kept = [row for row, name in enumerate(named) if name]
    if not kept:
        raise ConfigError(
            f"No picture of {folder} has {AGREED} captions that agree on a subject. Put "
            "all captions of each picture beside the vectors."
        )
    names = [name for name in SUBJECTS if name in named]
    labels = np.array([names.index(str(named[row])) for row in kept])
    content = io.BytesIO()
    np.savez(
        content,
        emb=dataset.images.embeddings[kept].numpy(),
        label=labels,
        classnames=np.array(names),
        split=np.array(parts(labels)),
    )
    write_output(out, content.getvalue())
    return len(kept)


def main() -> None:
    """Write the bank that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="A caption-bank with all captions.")
    parser.add_argument("out", type=Path, help="The .npz to write.")
    asked = parser.parse_args()
    try:
        print(f"{write_subjects(asked.folder, asked.out)} pictures: {asked.out}")
    except PrivauditError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
