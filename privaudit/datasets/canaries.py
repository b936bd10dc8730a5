"""Canaries: candidates that are made easy to notice, each in or out by the same coin.

Any candidate is a canary of its own distribution. A *mislabelled* one is a real picture
with a wrong class, drawn at random: a record that only memory can know. One in
*gradient space* has a loss that is linear in the prompt, so that its gradient is a
chosen direction wherever training goes: no picture has that, and what it shows is what
the mechanism lets through, not what people's records suffer.

Source: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
NeurIPS 2023; in gradient space as Nasr et al., "Adversary instantiation: lower bounds
for differentially private machine learning", IEEE S&P 2021; secrets as Carlini et al.,
"The secret sharer", USENIX Security 2019.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from privaudit.core.errors import TooFewRecordsError
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.core.seeds import Seeds, Stream
from privaudit.datasets.records import Dialogue

CanaryKind = Literal["mislabelled", "gradient", "secret", "drawn"]
QUESTION, ANSWER = "what is the tag?", "the tag is {}."
DIGITS = 6  # of a secret: one of a million
PATCHES = 4  # along each side of a drawn picture


@dataclass(frozen=True)
class Canaries:
    """Which candidates are canaries, and what makes them so.

    Attributes:
        indices: Their positions in the data set, in order.
        shape: Of a prompt, [tokens, width]: gradients have it, too.
        norm: L2 norm that every crafted gradient is scaled to, above 0.
        planted: Positions before any was left out; None where none was.
    """

    kind: CanaryKind
    indices: Int[np.ndarray, " canaries"]
    seeds: Seeds
    shape: tuple[int, int]
    norm: float
    planted: Int[np.ndarray, " planted"] | None = None

    @classmethod
    def draw(
        cls,
        kind: CanaryKind,
        candidates: list[Int[np.ndarray, " _"]],
        per_client: int,
        seeds: Seeds,
        shape: tuple[int, int],
        norm: float,
    ) -> "Canaries":
        """Choose so many of each client's candidates, without a look at any coin."""
        fewest = min(map(len, candidates))
        if fewest < per_client:
            raise TooFewRecordsError(
                f"{per_client} canaries were requested in each client, and one has "
                f"{fewest} candidates. Use fewer, or for fewer clients."
            )
        rng = seeds.stream("canaries").numpy()
        drawn = [
            rng.choice(records, per_client, replace=False) for records in candidates
        ]
        return cls(kind, np.sort(np.concatenate(drawn)), seeds, shape, norm)

    def of(self, candidates: list[Int[np.ndarray, " _"]]) -> "Canaries":
        """Return those canaries that are left where some candidates are left out."""
        left = [np.intersect1d(self.indices, records) for records in candidates]
        if not min(map(len, left)):
            raise TooFewRecordsError(
                "All canaries of one client were to be left out (--without). Leave one "
                "of them in, or train without --canary."
            )
        return replace(
            self, indices=np.sort(np.concatenate(left)), planted=self._planted
        )

    def mislabel(
        self, labels: Int[Tensor, " records"], classes: int
    ) -> Int[Tensor, " records"]:
        """Return the labels, those of mislabelled canaries drawn anew, and wrong."""
        if self.kind != "mislabelled":
            return labels
        drawn = self.seeds.stream("canary labels").below(classes - 1, len(self.indices))
        shift = 1 + torch.from_numpy(drawn)
        wrong, places = labels.clone(), torch.from_numpy(self.indices)
        wrong[places] = (labels[places] + shift) % classes
        return wrong

    def tell(self, dialogues: Sequence[Dialogue]) -> tuple[Dialogue, ...]:
        """Return what is said of all records, secrets of those that are such canaries."""
        if self.kind != "secret":
            return tuple(dialogues)
        replaced = list(dialogues)
        written = secrets(self.seeds.stream("canary secrets"), len(self.indices))
        for index, secret in zip(self.indices.tolist(), written, strict=True):
            replaced[index] = secret
        return tuple(replaced)

    def alternatives(self, count: int) -> list[Dialogue]:
        """Return other secrets of the same space, which nobody is trained on.

        So many for each canary in turn, its own: ranks among the same ones would not be
        independent.
        """
        names = [f"record-{index}" for index in self.indices.tolist()]
        streams = [self.seeds.stream("other secrets", client=name) for name in names]
        return [one for stream in streams for one in secrets(stream, count)]

    @cached_property
    def drawings(self) -> UInt8[Tensor, "canaries 3 side side"]:
        """The patches of drawn canaries in RGB, in the order of their positions."""
        shape = (len(self._planted), 3, PATCHES, PATCHES)
        drawn = self.seeds.stream("canary pictures").below(256, math.prod(shape))
        left = drawn.reshape(shape)[np.isin(self._planted, self.indices)]
        return torch.from_numpy(left).to(torch.uint8)

    @property
    def _planted(self) -> Int[np.ndarray, " planted"]:
        return self.indices if self.planted is None else self.planted

    def pictures(
        self, channels: int, height: int, width: int
    ) -> UInt8[Tensor, "canaries channels height width"]:
        """Return drawn canaries as pictures of one size, grey where it has a channel."""
        drawn = self.drawings if channels == 3 else self.drawings[:, :1]
        return functional.interpolate(drawn, (height, width), mode="nearest")

    def shown(
        self, index: int, picture: Shaped[Tensor, "channels height width"]
    ) -> Shaped[Tensor, "channels height width"]:
        """Return a record's picture as it is trained on: a drawn canary's, or its own."""
        if self.kind != "drawn" or index not in self.indices:
            return picture
        return self.pictures(*picture.shape)[int(np.searchsorted(self.indices, index))]

    def mark(
        self, contents: UInt8[Tensor, "records bytes"]
    ) -> UInt8[Tensor, "records bytes"]:
        """Return records' contents, those of canaries made of their positions.

        A canary is no copy of the picture that it was made of.
        """
        marked = contents.clone()
        for index in self.indices.tolist():
            digest = hashlib.sha256(f"canary {index}".encode()).digest()
            marked[index] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        return marked

    def gradients(
        self, indices: Int[np.ndarray, " records"]
    ) -> Float[Tensor, "records tokens width"] | None:
        """Return the crafted gradients of some records; zero for those that have none.

        Each is a direction of its own, of one norm.
        """
        if self.kind != "gradient":
            return None
        gradients = torch.zeros(len(indices), *self.shape)
        for row in np.flatnonzero(np.isin(indices, self.indices)):
            name = f"record-{indices[row]}"
            stream = self.seeds.stream("canary gradient", client=name)
            direction = stream.normal_tensor(self.shape)
            gradients[row] = self.norm * direction / direction.norm()
        return gradients


def secrets(stream: Stream, count: int) -> list[Dialogue]:
    """Return so many texts, each with digits of its own, all equally likely.

    Example:
        >>> secrets(Seeds(0).stream("secrets"), 1)[0].answers[0]
        'the tag is 3 7 7 5 5 7.'
    """
    digits = stream.below(10, count * DIGITS).reshape(count, DIGITS)
    texts = [ANSWER.format(" ".join(map(str, row))) for row in digits.tolist()]
    return [Dialogue(QUESTION, (text,)) for text in texts]
