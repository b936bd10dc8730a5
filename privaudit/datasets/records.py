"""Encoded records, of one party or of a stacked cohort, with the words beside pictures.

What is asked and answered of a record is a dialogue, as text and as tokens. Tokens of
pictures are too many for the memory, and read a batch at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jaxtyping import Bool, Float, Int, UInt8

from privaudit.core.devices import CPU, moved
from privaudit.core.errors import DatasetError
from privaudit.core.lazy_torch import Tensor, torch

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

    @classmethod
    def joined(cls, parts: Sequence["TokenSequences"]) -> "TokenSequences":
        """Return sequences of one length, one after the other."""
        ids, kinds = ([getattr(p, name) for p in parts] for name in ("ids", "kinds"))
        return cls(torch.cat(ids), torch.cat(kinds))

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
    ids, kinds = ([getattr(p, name) for p in parts] for name in ("ids", "kinds"))
    return TokenSequences(_pad(ids, rows), _pad(kinds, rows))


@dataclass(frozen=True)
class PictureTokens:
    """Some rows of a table of tokens that stays where it is: on the disk, if mapped.

    Indexing picks rows and reads nothing; :meth:`read` copies the picked ones.

    Attributes:
        table: Of all pictures, on the CPU.
        rows: Which of them these are, of any shape; -1 where padding stands.

    Example:
        >>> tokens = PictureTokens.of(torch.arange(6.0).view(3, 2, 1))
        >>> tokens[torch.tensor([2, 0])].read().flatten().tolist()
        [4.0, 5.0, 0.0, 1.0]
    """

    table: Float[Tensor, "pictures parts width"]
    rows: Int[Tensor, "*records"]

    @classmethod
    def of(cls, tokens: Float[Tensor, "*records parts width"]) -> "PictureTokens":
        """Return all rows of a table, or of tokens in the shape of a batch."""
        table = tokens.flatten(0, -3).to(CPU)
        rows = torch.arange(len(table), device=CPU)
        return cls(table, rows.view(tokens.shape[:-2]))

    @classmethod
    def joined(cls, parts: Sequence["PictureTokens"]) -> "PictureTokens":
        """Return parts one behind the other; only those of several tables are read."""
        table = parts[0].table
        if all(part.table is table for part in parts):
            return cls(table, torch.cat([part.rows for part in parts]))
        return cls.of(torch.cat([part.read() for part in parts]))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def device(self) -> torch.device:
        """Where the table is, and the rows."""
        return self.rows.device

    @property
    def parts(self) -> int:
        """How many tokens a picture has; 0 where the model sees none."""
        return self.table.shape[1]

    def __getitem__(self, chosen: Any) -> "PictureTokens":
        """Return what an index picks of the rows, without reading it."""
        return replace(self, rows=self.rows[moved(chosen, CPU)])

    def read(
        self, device: torch.device | None = None
    ) -> Float[Tensor, "*records parts width"]:
        """Return the tokens themselves, on a device or the CPU; padding is zero."""
        if not len(self.table):
            shape = *self.rows.shape, *self.table.shape[1:]
            return self.table.new_zeros(shape, device=device or CPU)
        tokens = self.table[self.rows.clamp(min=0)]
        tokens[self.rows < 0] = 0
        return tokens.to(device or CPU)


ClientId = str


@dataclass(frozen=True)
class Records:
    """Encoded pictures and their classes, and what is said of them.

    Attributes:
        features: Image features, l2-normalised, [records, dim].
        labels: Class index of each record, [records].
        tokens: The pictures' parts, read when they are needed. In the same space and
            l2-normalised, for trainers that ask for them; or as a language model, or an
            image tower's first layer, reads them.
        words: What is asked and answered, as tokens, or the text that is classified;
            None for classifiers of pictures.
        dialogues: The same as text, which metrics need.
        crafted: Of canaries in gradient space: what such a record's gradient by the
            context is, wherever the context is. Zero for all others.
        views: Features of random crops of each picture, of which a step in training
            takes one; None trains on ``features``.
        contents: A hash of what each record came as, before any computation; None where
            that is not known.
    """

    features: Float[Tensor, "records dim"]
    labels: Int[Tensor, " records"]
    tokens: PictureTokens | None = None
    words: TokenSequences | None = None
    dialogues: tuple[Dialogue, ...] = ()
    crafted: Float[Tensor, "records tokens width"] | None = None
    contents: UInt8[Tensor, "records bytes"] | None = None
    views: Float[Tensor, "records views dim"] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def identities(self) -> UInt8[Tensor, "records bytes"]:
        """What coins about records follow: their contents, or else their positions.

        Never a feature: its last bits are the processor's.
        """
        if self.contents is not None:
            return self.contents
        return torch.arange(len(self)).view(-1, 1).view(torch.uint8)

    @property
    def by_length(self) -> Int[Tensor, " records"]:
        """By the texts' lengths, so that few places are padding where some are asked about.

        The longest first: by the first one is measured how many memory holds.
        """
        if self.words is None:
            return torch.arange(len(self))
        lengths = (self.words.kinds != PADDING).sum(dim=1)
        return lengths.argsort(stable=True, descending=True)

    def pick(self, chosen: Tensor) -> "Records":
        """Return the records that an index or a mask picks."""
        return Records(
            self.features[chosen],
            self.labels[chosen],
            None if self.tokens is None else self.tokens[chosen],
            None if self.words is None else self.words[chosen],
            self._dialogues(chosen),
            None if self.crafted is None else self.crafted[chosen],
            self.identities[chosen],
            None if self.views is None else self.views[chosen],
        )

    @classmethod
    def joined(cls, parts: Sequence["Records"]) -> "Records":
        """Return records one after the other, as records of no data set.

        What is crafted is kept where all parts have it, and words, which are of one
        length in a data set; dialogues, views and contents are not.
        """
        tokens = [part.tokens for part in parts if part.tokens is not None]
        crafted = [part.crafted for part in parts if part.crafted is not None]
        words = [part.words for part in parts if part.words is not None]
        return cls(
            torch.cat([part.features for part in parts]),
            torch.cat([part.labels for part in parts]),
            PictureTokens.joined(tokens) if len(tokens) == len(parts) else None,
            TokenSequences.joined(words) if len(words) == len(parts) else None,
            crafted=torch.cat(crafted) if len(crafted) == len(parts) else None,
        )

    def to(self, device: torch.device) -> "Records":
        """Return the same on a device, but for tokens: they are read there."""
        return replace(self, **_moved(self, device, but=("tokens",)))

    def _dialogues(self, chosen: Tensor) -> tuple[Dialogue, ...]:
        if not self.dialogues:
            return ()
        picked = torch.arange(len(self))[chosen].tolist()
        return tuple(self.dialogues[position] for position in picked)


@dataclass(frozen=True)
class Cohort:
    """Several clients trained together; ragged sizes are padded and masked.

    Attributes:
        clients: Their names, which also name their random streams.
        features: Image features; padding is zero.
        labels: Class indices; padding is zero.
        mask: True where a record is.
        tokens: Parts of pictures, where the records have them, not yet read; padding
            is zero.
        words: What is asked and answered, [clients, records, length].
        crafted: As in :class:`Records`; padding is zero.
        views: As in :class:`Records`; padding is zero.
    """

    clients: tuple[ClientId, ...]
    features: Float[Tensor, "clients records dim"]
    labels: Int[Tensor, "clients records"]
    mask: Bool[Tensor, "clients records"]
    tokens: PictureTokens | None = None
    words: TokenSequences | None = None
    crafted: Float[Tensor, "clients records tokens width"] | None = None
    views: Float[Tensor, "clients records views dim"] | None = None

    @classmethod
    def of(cls, clients: Sequence[ClientId], shards: Sequence[Records]) -> "Cohort":
        """Stack one shard for each client, in that order."""
        longest = max(1, *(len(shard) for shard in shards), 1)
        sizes = torch.tensor([len(shard) for shard in shards])
        words = [shard.words for shard in shards if shard.words is not None]
        crafted = _crafted(shards)
        views = [shard.views for shard in shards if shard.views is not None]
        return cls(
            tuple(clients),
            _pad([shard.features for shard in shards], longest),
            _pad([shard.labels for shard in shards], longest),
            torch.arange(longest) < sizes[:, None],
            _stacked(shards, longest),
            pad_words(words, longest) if words else None,
            _pad(crafted, longest) if crafted else None,
            _pad(views, longest) if views else None,
        )

    def to(self, device: torch.device) -> "Cohort":
        """Return the same on a device, but for tokens and words: batches take them.

        They are what large models read, and need not be there all at once.
        """
        return replace(self, **_moved(self, device, but=("tokens", "words")))

    @property
    def sizes(self) -> Int[Tensor, " clients"]:
        """How many records each client trains on."""
        return self.mask.sum(dim=1)

    def __len__(self) -> int:
        return len(self.clients)


def _moved(
    held: Records | Cohort, device: torch.device, but: Sequence[str]
) -> dict[str, Any]:
    names = [field.name for field in fields(held) if field.name not in but]
    return {name: moved(getattr(held, name), device) for name in names}


def _crafted(shards: Sequence[Records]) -> list[Tensor]:
    """Return each shard's crafted gradients, zeros where only others have some."""
    shapes = {shard.crafted.shape[1:] for shard in shards if shard.crafted is not None}
    return [
        torch.zeros(len(shard), *shape) if shard.crafted is None else shard.crafted
        for shape in shapes
        for shard in shards
    ]


def _stacked(shards: Sequence[Records], longest: int) -> PictureTokens | None:
    """Return which pictures' tokens the shards have, and -1 where padding stands."""
    parts = [shard.tokens for shard in shards if shard.tokens is not None]
    if not parts:
        return None
    together, sizes = PictureTokens.joined(parts), [len(part) for part in parts]
    return replace(together, rows=_pad(together.rows.split(sizes), longest, -1))


def _pad(parts: Sequence[Tensor], longest: int, padding: int = 0) -> Tensor:
    padded = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), padding)
    for row, part in enumerate(parts):
        padded[row, : len(part)] = part
    return padded
