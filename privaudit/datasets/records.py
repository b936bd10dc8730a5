"""Encoded records, of one party or of a stacked cohort."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from privaudit.core.devices import moved
from privaudit.datasets.dialogues import Dialogue, TokenSequences, pad_words
from privaudit.datasets.picture_tokens import PictureTokens

ClientId = str


@dataclass(frozen=True)
class Records:
    """Encoded pictures and their classes, and what is said of them.

    Attributes:
        features: Image features, l2-normalised.
        labels: Class indices.
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
        """Return classifiers' records one after the other, as records of no data set.

        What is crafted is kept where all parts have it; views and contents are not.
        """
        tokens = [part.tokens for part in parts if part.tokens is not None]
        crafted = [part.crafted for part in parts if part.crafted is not None]
        return cls(
            torch.cat([part.features for part in parts]),
            torch.cat([part.labels for part in parts]),
            PictureTokens.joined(tokens) if tokens else None,
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
