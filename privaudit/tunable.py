"""Frozen transformers that many models share, and what each model adds to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from privaudit.streams import Stream
from privaudit.words import Words

Change = Callable[[Tensor], Tensor]
"""[k rows inputs] -> [k rows outputs]: added to what a frozen linear layer gives."""
Prefix = tuple[
    Float[Tensor, "k heads tokens width"], Float[Tensor, "k heads tokens width"]
]
"""Keys and values that stand in front of a layer's own."""


@dataclass(frozen=True)
class Target:
    """One frozen linear layer that may be changed.

    Attributes:
        inputs: Width of what goes in.
        outputs: Width of what comes out.
        layer: The transformer layer it is in, counted from 0 at the bottom.
    """

    inputs: int
    outputs: int
    layer: int


@dataclass(frozen=True)
class Site:
    """One layer of self-attention, in front of whose keys a prefix may stand.

    Attributes:
        heads: Of its keys and values.
        width: Of one head.
    """

    heads: int
    width: int


@dataclass(frozen=True)
class Head:
    """A linear layer on top of a frozen tower that every model has for itself.

    Attributes:
        classes: What it tells apart.
        width: Of what it reads.
    """

    classes: int
    width: int


@dataclass(frozen=True)
class Tuning:
    """What each of k models adds to a frozen transformer; nothing where empty.

    Attributes:
        changes: To linear layers, by target.
        prompt: Vectors in front of the embedded input.
        prefix: Keys and values in front of those of self-attention, by site.
        weights: In place of the transformer's own, by name: [k, ...] each.
        head: "weight" [k, classes, width] and "bias" [k, classes] of the own head.
    """

    changes: Mapping[str, Change] = field(default_factory=dict)
    prompt: Float[Tensor, "k tokens width"] | None = None
    prefix: Mapping[str, Prefix] = field(default_factory=dict)
    weights: Mapping[str, Float[Tensor, "k ..."]] = field(default_factory=dict)
    head: Mapping[str, Float[Tensor, "k ..."]] = field(default_factory=dict)

    @property
    def virtual_tokens(self) -> int:
        """Positions that the prompt takes up in front of the input."""
        return 0 if self.prompt is None else self.prompt.shape[1]

    @property
    def skipped_positions(self) -> int:
        """Positions that a prefix takes up, though nothing is embedded there."""
        keys = next((keys for keys, _ in self.prefix.values()), None)
        return 0 if keys is None else keys.shape[2]


@runtime_checkable
class Tunable(Protocol):
    """A frozen transformer of which several differently tuned ones run at once."""

    @property
    def targets(self) -> Mapping[str, Target]:
        """The linear layers that may be changed, by name, in a fixed order."""
        ...

    @property
    def sites(self) -> Mapping[str, Site]:
        """The layers of self-attention that take a prefix, by name, in that order."""
        ...

    @property
    def width(self) -> int:
        """Of an embedded token, and so of a prompt's vector."""
        ...

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """All frozen weights by name: where full fine-tuning begins."""
        ...

    def start_vectors(self, count: int, stream: Stream) -> Float[Tensor, "count width"]:
        """Draw vectors for a prompt to begin at."""
        ...


@runtime_checkable
class Tower(Tunable, Protocol):
    """A transformer behind a classifier."""

    @property
    def head(self) -> Head | None:
        """The head that each model trains for itself; None where nothing is."""
        ...

    def logits(
        self,
        features: Float[Tensor, "k rows d"],
        tokens: Float[Tensor, "k rows parts width"] | None,
        words: Words | None,
        tuning: Tuning,
    ) -> Float[Tensor, "k rows classes"]:
        """Return logits, differentiable in what the models add.

        Args:
            features: Of whole records, by the frozen model.
            tokens: Of parts of pictures, where the tower reads pictures.
            words: [k, rows, length], where it reads texts.
            tuning: What each model adds.
        """
        ...
