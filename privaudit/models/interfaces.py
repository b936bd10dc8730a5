"""Interfaces of frozen models to trainers: a classifier, a language model, or layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.seeds import Stream
from privaudit.datasets.records import TokenSequences

TaskKind = Literal["classification", "generation"]
"""What a model does: it assigns a class, or it writes an answer."""
AnyTask = Literal["classification", "generation", "either"]
"""What a trainer trains for, or an attack takes; "either" follows the model."""
Precision = Literal["float32", "bfloat16", "float16"]
"""Of a frozen model's weights and forward passes."""
Change = Callable[[Tensor], Tensor]
"""[k rows inputs] -> [k rows outputs]: added to what a frozen linear layer gives."""
Prefix = tuple[
    Float[Tensor, "k heads tokens width"], Float[Tensor, "k heads tokens width"]
]
"""Keys and values that stand in front of a layer's own."""


@dataclass(frozen=True)
class TunableLayer:
    """One frozen linear layer that may be changed.

    Attributes:
        layer: The transformer layer it is in, counted from 0 at the bottom.
    """

    inputs: int
    outputs: int
    layer: int


@dataclass(frozen=True)
class Site:
    """One layer of self-attention, in front of whose keys a prefix may stand."""

    heads: int
    width: int


@dataclass(frozen=True)
class Head:
    """A linear layer on top of a frozen tower that every model has for itself."""

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

    def alone(self, number: int, models: int) -> "Tuning":
        """Return what one of k models adds, as a stack of one."""
        one = slice(number, number + 1)

        def of_one(change: Change) -> Change:  # computed for all, of the one's rows
            return lambda rows: change(rows.expand(models, -1, -1))[one]

        return Tuning(
            {name: of_one(change) for name, change in self.changes.items()},
            None if self.prompt is None else self.prompt[one],
            {site: (k[one], v[one]) for site, (k, v) in self.prefix.items()},
            {name: tensor[one] for name, tensor in self.weights.items()},
            {name: tensor[one] for name, tensor in self.head.items()},
        )


@runtime_checkable
class Tunable(Protocol):
    """A frozen transformer of which several differently tuned ones run at once."""

    @property
    def targets(self) -> Mapping[str, TunableLayer]:
        """The linear layers that may be changed, by name, in a fixed order."""

    @property
    def sites(self) -> Mapping[str, Site]:
        """The layers of self-attention that take a prefix, by name, in that order."""

    @property
    def width(self) -> int:
        """Of an embedded token, and so of a prompt's vector; 0 where none is taken."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """All frozen weights by name: where full fine-tuning begins."""

    def start_vectors(self, count: int, stream: Stream) -> Float[Tensor, "count width"]:
        """Draw vectors for a prompt to begin at."""


@runtime_checkable
class Tower(Tunable, Protocol):
    """A transformer behind a classifier."""

    @property
    def head(self) -> Head | None:
        """The head that each model trains for itself; None where nothing is."""

    def logits(
        self,
        features: Float[Tensor, "k rows d"],
        tokens: Float[Tensor, "k rows parts width"] | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Float[Tensor, "k rows classes"]:
        """Return logits, differentiable in what the models add.

        Args:
            features: Of whole records, by the frozen model.
            tokens: Of parts of pictures, where the tower reads pictures.
            words: [k, rows, length], where it reads texts.
            tuning: What each of the k models adds.
        """


@runtime_checkable
class Prompts(Protocol):
    """A frozen text tower, bound to class names."""

    @property
    def context_tokens(self) -> int:
        """Learned vectors in front of a class name."""

    @property
    def width(self) -> int:
        """Size of one such vector."""

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return the normalised text features of every class, differentiable."""


@runtime_checkable
class Linearised(Protocol):
    """A text tower at some contexts, for many products with its derivative."""

    @property
    def features(self) -> Float[Tensor, "k classes dim"]:
        """What :class:`Prompts` returns of them."""

    def products(
        self, behind: Float[Tensor, "n k classes dim"]
    ) -> Float[Tensor, "n k tokens width"]:
        """Return the gradients of <behind, features> by the contexts, for every n."""


@runtime_checkable
class Linearises(Protocol):
    """Prompts that know a faster way to many products than autograd."""

    def jacobian(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Linearised | None:
        """Return it for some contexts; None where it is no faster."""


@dataclass(frozen=True)
class Classifier:
    """A frozen CLIP whose prompts can be learned.

    Attributes:
        prompts: The frozen text tower, bound to the class names.
        logit_scale: What cosines are multiplied by, exponentiated.
        zero_shot: Text features of the hand-written prompt.
        load_tower: Gives the transformer behind the logits, for those who tune it;
            None where it cannot be tuned.
    """

    task: ClassVar[Literal["classification"]] = "classification"

    prompts: Prompts
    logit_scale: float
    zero_shot: Float[Tensor, "classes dim"]
    load_tower: Callable[[], Tower] | None = None

    @cached_property
    def tower(self) -> Tower:
        """The transformer behind the logits, loaded when first asked for.

        Raises:
            ConfigError: It cannot be tuned.
        """
        if self.load_tower is None:
            raise ConfigError(
                "This model's transformer cannot be tuned. Use tiny-clip, or a model "
                "of transformers."
            )
        return self.load_tower()


@dataclass(frozen=True)
class OwnersModel:
    """A model that only its owner's functions can ask: nothing of it is known here."""

    task: TaskKind


@runtime_checkable
class LanguageModel(Tunable, Protocol):
    """A frozen language model that may read pictures as tokens.

    Several models are asked at once: k of them, which differ by what is added.
    """

    task: ClassVar[Literal["generation"]]

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def vocabulary(self) -> int:
        """How many logits there are at each position."""

    def logits(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: TokenSequences,
        tuning: Tuning,
        positions: Int[Tensor, " p"] | None = None,
    ) -> Float[Tensor, "k rows p vocabulary"]:
        """Return the next token's logits in float32, differentiable in what is added.

        At padding they mean nothing.

        Args:
            tokens: The pictures; gradients flow to them.
            words: Token sequences, [k, rows, length].
            tuning: What each of the k models adds.
            positions: Where logits are wanted; None is everywhere.
        """

    def generate(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: TokenSequences,
        tuning: Tuning,
        longest: int,
    ) -> list[list[str]]:
        """Return what each model says to each prompt, as text, greedily.

        ``words`` are prompts only, [k, rows, length]; a row of padding gets no words.
        An answer has ``longest`` tokens at most, and ends with the context, too.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special ones."""
