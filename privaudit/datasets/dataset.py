"""The data set interface, and the names of all data sets."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int, Shaped, UInt8

from privaudit.core.errors import ConfigError, DatasetError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.registry import Registry
from privaudit.core.tensors import digest
from privaudit.datasets.records import Dialogue, check_dialogues

TRAIN, VALIDATION, TEST_SPLIT = 0, 1, 2


@runtime_checkable
class Images(Protocol):
    """Pictures that are read when they are needed, each of its own size."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, index: int) -> Shaped[Tensor, "channels height width"]:
        """Return one: grey or RGB, bytes or floats from 0 to 1."""

    @property
    def digest(self) -> str:
        """A SHA-256 that changes with any picture."""

    @property
    def contents(self) -> Sequence[bytes]:
        """The SHA-256 of each picture as it came."""


@dataclass(frozen=True)
class PixelImages:
    """Pictures of one size, in memory.

    Attributes:
        pixels: Grey (1 channel) or colour (3), bytes or floats from 0 to 1.
    """

    pixels: Shaped[Tensor, "n channels height width"]

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Shaped[Tensor, "channels height width"]:
        """Return one picture."""
        return self.pixels[index]

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over type, shape and bytes."""
        return digest(self.pixels)

    @cached_property
    def contents(self) -> Sequence[bytes]:
        """The SHA-256 of each picture's bytes."""
        return _hash_rows(self.pixels)


@dataclass(frozen=True)
class FeatureBank:
    """Embeddings that an image tower made elsewhere: nobody hands out pictures.

    Attributes:
        embeddings: One for each record; a model says whether it can take them.
    """

    embeddings: Float[Tensor, "n dim"]

    def __len__(self) -> int:
        return len(self.embeddings)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over type, shape and bytes."""
        return digest(self.embeddings)

    @property
    def contents(self) -> Sequence[bytes]:
        """The SHA-256 of each embedding's bytes."""
        return _hash_rows(self.embeddings)


def _hash_rows(tensor: Tensor) -> list[bytes]:
    return [hashlib.sha256(row.tobytes()).digest() for row in tensor.numpy()]


@dataclass(frozen=True)
class Texts:
    """Texts in place of pictures, or pairs of texts.

    Attributes:
        texts: Each record's, one or two: a sentence, or a premise and a hypothesis.
    """

    texts: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for number, parts in enumerate(self.texts):
            if len(parts) not in (1, 2) or not all(part.strip() for part in parts):
                raise DatasetError(
                    f"Record {number} has the texts {list(parts)}. Give each record "
                    "one or two texts, none of them blank, or leave it out."
                )

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over all texts."""
        return hashlib.sha256(repr(self.texts).encode()).hexdigest()

    @property
    def contents(self) -> Sequence[bytes]:
        """The SHA-256 of each record's text."""
        return [hashlib.sha256(repr(one).encode()).digest() for one in self.texts]


@dataclass(frozen=True)
class Dataset:
    """Labelled records.

    Attributes:
        images: Pictures, or embeddings or texts in their place.
        labels: Class index of each record, [records].
        class_names: By index, as a prompt would write them.
        template: A hand-written prompt with {} for the class name.
        split: ``TRAIN``, ``VALIDATION`` or ``TEST_SPLIT`` for each record; None if the
            data set comes in one piece.
        domains: Which domain each record is from; None if there is one.
        domain_names: Name of each index in ``domains``.
        dialogues: What is asked and answered about each record; none for classifiers.
        groups: A number that records of one unit share, of a column that was named;
            None where none was.

    Raises:
        ConfigError: Parts that do not go together: lengths differ, a number has no
            name, or a name is blank or there twice.
    """

    images: Images | FeatureBank | Texts
    labels: Int[Tensor, " n"]
    class_names: tuple[str, ...]
    template: str = "a photo of a {}."
    split: Int[Tensor, " n"] | None = None
    domains: Int[Tensor, " n"] | None = None
    domain_names: tuple[str, ...] = ()
    dialogues: tuple[Dialogue, ...] = ()
    groups: Int[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        _check_numbers("label", self.labels, len(self.images), len(self.class_names))
        _check_names("class", self.class_names)
        if self.split is not None:
            _check_numbers("split", self.split, len(self.images), 3)
        if self.domains is not None:
            count = len(self.domain_names)
            _check_numbers("domain", self.domains, len(self.images), count)
            _check_names("domain", self.domain_names)
        if self.groups is not None:
            _check_numbers("group", self.groups, len(self.images), None)
        if self.dialogues:
            check_dialogues(self.dialogues, len(self.images))
        if "{}" not in self.template:
            raise ConfigError(
                f"The template {self.template!r} has no place for a class name. Write "
                "{} where the name belongs."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pictures(self) -> Images | FeatureBank:
        """The pictures, or the embeddings in their place."""
        if isinstance(self.images, Texts):
            raise ConfigError(
                "A model that looks at pictures was given a data set of texts. Use a "
                "model that reads, or a data set of pictures."
            )
        return self.images

    @cached_property
    def contents(self) -> UInt8[Tensor, "n bytes"]:
        """A SHA-256 of each record's picture and words, whatever its label."""
        digests = self.images.contents
        if self.dialogues:
            pairs = zip(digests, self.dialogues, strict=True)
            both = [picture + repr(words).encode() for picture, words in pairs]
            digests = [hashlib.sha256(one).digest() for one in both]
        return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(
            len(self), -1
        )

    @cached_property
    def hash(self) -> str:
        """A SHA-256 over all of it but the groups; runs on disk hold it."""
        parts = [self.images.digest, digest(self.labels), self.template]
        optional = [t for t in (self.split, self.domains) if t is not None]
        parts += [*self.class_names, *self.domain_names, *map(digest, optional)]
        parts += [repr(dialogue) for dialogue in self.dialogues]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_numbers(what: str, numbers: Tensor, records: int, names: int | None) -> None:
    if len(numbers) != records or records == 0:
        raise DatasetError(
            f"There are {records} records and {len(numbers)} numbers of their {what}. "
            "Give one number for each record, and at least one record."
        )
    if names is None:  # any will do
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= names:
        raise DatasetError(
            f"The {what} numbers go from {low} to {high}, and there are {names} names: "
            f"they should go from 0 to {names - 1}. Fix the numbers or the names."
        )


def _check_names(what: str, names: tuple[str, ...]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name.strip():
            raise ConfigError(f"The name of {what} {index} is blank. Give it a name.")
        if seen.setdefault(name, index) != index:
            raise DatasetError(
                f"{what.capitalize()} {seen[name]} and {what} {index} are both called "
                f"{name!r}. Rename one, or make them one."
            )


DATASETS: Registry[Callable[..., Dataset]] = Registry("data set", "privaudit.datasets")
"""Data sets by name: functions without arguments that return one, or
:class:`~privaudit.datasets.sources.OnDisk` for those that users bring."""
