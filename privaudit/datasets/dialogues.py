"""Words beside pictures: what is asked about a record, and what is answered."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from privaudit.core.errors import DatasetError

PADDING, PICTURE, INSTRUCTION, ANSWER = 0, 1, 2, 3
"""What one position of a sequence of tokens is."""


@dataclass(frozen=True)
class Dialogue:
    """What is asked about one picture, and what is answered.

    Attributes:
        question: As it is put to the model: context and choices are written out.
        answers: The first is trained on; all are references for metrics.
        choices: The possible answers of a multiple-choice question.
        short: Whether an answer is a few words that are right or not, and no caption.
    """

    question: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    # Only metrics ask: what stands in repr is hashed, and hashes name what was trained.
    short: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class TokenSequences:
    """Sequences of tokens, padded at the right.

    Attributes:
        ids: Token numbers; at a picture's positions the number is no word's, and may
            say how the model lays the picture out.
        kinds: ``PADDING``, ``PICTURE``, ``INSTRUCTION`` or ``ANSWER`` (with the token
            that ends it).
    """

    ids: Int[Tensor, "*n length"]
    kinds: Int[Tensor, "*n length"]

    def __getitem__(
        self, chosen: Tensor | int | slice | tuple[Tensor | slice, ...]
    ) -> "TokenSequences":
        """Return some of the sequences."""
        return TokenSequences(self.ids[chosen], self.kinds[chosen])

    def repeated(self, count: int) -> "TokenSequences":
        """Return the same for each of ``count`` models, on a new leading axis."""
        return TokenSequences(
            self.ids.expand(count, *self.ids.shape),
            self.kinds.expand(count, *self.kinds.shape),
        )

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.ids.device

    def to(self, device: torch.device) -> "TokenSequences":
        """Return the same on a device."""
        return TokenSequences(self.ids.to(device), self.kinds.to(device))

    @property
    def length(self) -> int:
        """Positions of each sequence, padding included."""
        return self.ids.shape[-1]

    def trimmed(self) -> "TokenSequences":
        """Return the same without columns in which all is padding."""
        used = (self.kinds != PADDING).flatten(0, -2).any(dim=0)
        length = int(used.nonzero().max()) + 1 if used.any() else 0
        return TokenSequences(self.ids[..., :length], self.kinds[..., :length])


def check_dialogues(dialogues: Sequence[Dialogue], records: int) -> None:
    """Refuse dialogues that nobody could be trained on."""
    if len(dialogues) != records:
        raise DatasetError(
            f"There are {records} records and {len(dialogues)} dialogues about them. "
            "Give one dialogue for each record."
        )
    for number, dialogue in enumerate(dialogues):
        texts = (dialogue.question, *dialogue.answers)
        if not dialogue.answers or not all(text.strip() for text in texts):
            raise DatasetError(
                f"Record {number} is asked {dialogue.question!r} and answered "
                f"{list(dialogue.answers)}: nothing of that may be blank, and there "
                "must be an answer. Write one, or leave the record out."
            )


def pad_words(parts: Sequence[TokenSequences], rows: int) -> TokenSequences:
    """Stack parts of one length on a new leading axis, each padded to ``rows``."""

    def padded(tensors: list[Tensor]) -> Tensor:
        return torch.stack([pad(t, (0, 0, 0, rows - len(t))) for t in tensors])

    return TokenSequences(
        padded([p.ids for p in parts]), padded([p.kinds for p in parts])
    )
