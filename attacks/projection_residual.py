"""Projection residual: does a record lie in the span of what entered the layers?"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from itertools import chain
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.record_gradients import (
    Move,
    chosen_moves,
    layers_of,
    of_one_broadcast,
    why_no_moves,
)
from privaudit.auditing.signals import (
    PUBLIC_MEDIAN,
    public_threshold,
    reference_records,
)
from privaudit.core.errors import AttackError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import digest
from privaudit.federation.trainer import LearnsPrompt, Records, Task, Trainer
from privaudit.models.layer_factors import SMALLEST, LayerFactors, row_space

NO_LAYERS = (
    "What was sent multiplies no layer's inputs: prompts, or a model outside of torch."
)
APART = 6.0  # deviations between two groups of scores that are certain
FEWEST = 0.1  # of the scores, in the smaller group
WHOLE = 0.8  # of the columns: a span beyond it leaves nothing outside
SURE = 1e-12  # of an input's squared length outside: less says no more
RIDGE = 1e-3  # of the mean square of an input's numbers


@ATTACKS.register("projection-residual")
@dataclass(frozen=True)
class ProjectionResidual:
    """Score a candidate by how far its layer inputs are from an update's row space.

    The update of a dense layer is a sum of outer products of output gradients with the
    client's own inputs, so its rows lie in their span. The score is minus the logarithm
    of the part of an input outside of it, by singular vectors above the rounding of what
    was sent. Lengths are x' S^-1 x, S the second moments of all inputs: where the layer
    has fewer rows than the client has inputs, its rows are mixtures of members that
    differ from others by that alone. Where the span is the whole space, it is the energy
    |U S^-1 x|^2 / (x' S^-1 x). Layers weigh as the square roots of their columns, places
    (tokens) of a record that its loss depends on are averaged, and uploads of one client
    stacked where inputs did not move. Neither needs a label.

    Source: Deng et al., "Toward efficient membership inference attacks against federated
    large language models: a projection residual approach", IEEE S&P 2026; Petrov et al.,
    "DAGER: exact gradient inversion for large language models", NeurIPS 2024.

    Attributes:
        rounds: From so many, spread evenly, uploads are taken; 0 takes all.
        reference: Public records that say what no member looks like, at most.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"

    rounds: Annotated[int, Field(ge=0)] = 8
    reference: Annotated[int, Field(ge=1)] = 200

    @staticmethod
    def applies_to(trainer: Trainer, task: Task | None) -> bool:
        """Return whether anything that is sent may multiply what enters a layer."""
        return not isinstance(trainer, LearnsPrompt)

    def why_not(self, adversary: Adversary, targets: Sequence[Target]) -> str:
        """Return what is missing: moves, or layers that multiply by what moved."""
        if lacking := why_no_moves(adversary, targets, self.rounds):
            return lacking
        one = targets[0].candidates.pick(torch.arange(1))
        shown = (chosen_moves(adversary, t.client, self.rounds) for t in targets)
        moves = {frozenset(m.deltas): m for m in chain.from_iterable(shown)}
        try:
            layers = (
                layers_of(adversary, m.received, one, m.deltas) for m in moves.values()
            )
            return "" if any(layers) else NO_LAYERS
        except AttackError as error:
            return str(error)

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates; 0 is the median public record.

        All are 0 of a client that sent nothing which multiplies a layer's inputs, as one
        may whom a coin lets send other tensors.

        Raises:
            ViewError: The view shows no moves of weights.
            AttackError: No layer's inputs are to be had of any.
        """
        public = reference_records(adversary, "projection", self.reference)
        found = [r.scores() for r in self._residuals(adversary, targets, public)]
        if all(total is None for total in found):
            raise AttackError(NO_LAYERS)
        return [
            _scores(total, target.candidates, public)
            for total, target in zip(found, targets, strict=True)
        ]

    def _residuals(
        self, adversary: Adversary, targets: Sequence[Target], public: Records
    ) -> list["Residuals"]:
        """Return what moves say of each target's candidates, and of public records.

        Broadcast after broadcast, so that public records enter each model once, beside
        all candidates whose texts are padded as theirs.
        """

        def entered(move: Move, records: Records) -> dict[str, LayerFactors]:
            return layers_of(adversary, move.received, records, move.deltas)

        shown = [
            (number, move)
            for number, target in enumerate(targets)
            for move in chosen_moves(adversary, target.client, self.rounds)
        ]
        groups = of_one_broadcast([move for _, move in shown])
        parts = [[shown[place] for place in group] for group in groups]
        one = public.pick(torch.arange(1))  # says which inputs come again
        inputs = [
            {(name, digest(f.inputs)) for name, f in entered(part[0][1], one).items()}
            for part in parts
        ]
        left = Counter(
            (number, named)
            for part, alike in zip(parts, inputs, strict=True)
            for number, _ in part
            for named in alike
        )
        found = [Residuals(len(target.candidates)) for target in targets]
        for part, alike in zip(parts, inputs, strict=True):
            others: dict[str, LayerFactors] = {}
            for number, move in part:
                left.subtract((number, named) for named in alike)
                asked = targets[number].candidates
                if _padded_alike(asked, public):
                    own = entered(move, asked)
                    others = others or entered(move, public)
                    both = {
                        name: LayerFactors.join([own[name], others[name]], 0)
                        for name in own
                        if name in others
                    }
                else:
                    both = entered(move, Records.joined([asked, public]))
                later = {named[0] for named in alike if left[number, named]}
                found[number].add(move, both, later)
        return found


def _padded_alike(some: Records, others: Records) -> bool:
    """Return whether texts are as long; padding is a place until gradients say not."""
    if some.words is None or others.words is None:
        return True
    return some.words.trimmed().length == others.words.trimmed().length


def _scores(
    total: Float[np.ndarray, " records"] | None, candidates: Records, public: Records
) -> Scores:
    """Return candidates' scores, in front of public ones; 0 where no layer moved."""
    if total is None:
        nothing = np.zeros(len(candidates))
        return Scores(nothing, nothing > 0)
    scores, others = np.split(total, [len(candidates)])
    guesses = scores > public_threshold(others, public.labels, candidates.labels)
    return Scores(scores, guesses, expected=promised(scores))


class Whitened(NamedTuple):
    """What enters a layer where it says something, and S, its second moments."""

    is_asked: Bool[Tensor, "records places"]
    inverse: Float[Tensor, "d d"]
    flat: Float[Tensor, "asked d"]  # times S^-1
    sizes: Float[Tensor, " asked"]


@plain_dataclass(eq=False)
class StackedLayer:
    """One layer's updates, stacked, and the inputs that entered it.

    Attributes:
        updates: Each scaled to length 1.
        floors: Deviation of a number of each by rounding alone.
        is_place: Which places of a record are asked about; None: all.
        white: The inputs, once they were whitened.
    """

    inputs: Float[Tensor, "records places d"]
    updates: list[Float[Tensor, "m d"]]
    floors: list[float]
    is_place: Bool[Tensor, "records places"] | None = None
    white: Whitened | None = None

    def add(self, inputs: Tensor, update: Tensor, floor: float) -> bool:
        """Stack an update on others; False where other inputs entered."""
        if self.updates and not torch.equal(self.inputs, inputs):
            return False
        size = float(update.norm())
        if size > 0:
            self.updates.append(update / size)
            self.floors.append(floor / size)
        return True

    def is_entered_as(self, other: "StackedLayer") -> bool:
        """Return whether the same is asked about at the same places."""
        some, others = self.is_place, other.is_place
        if some is None or others is None or not torch.equal(some, others):
            return False
        return torch.equal(self.inputs, other.inputs)

    def scores(self) -> Float[np.ndarray, " records"]:
        """Return the records' scores, means over places that differ between them.

        Inputs of zeros say nothing; a record of such alone has the others' median.
        """
        white = self.white = self.white or self._whitened()
        is_asked, inverse, flat, sizes = white
        if not self.updates or not len(flat):
            return np.zeros(len(self.inputs))
        rows = torch.cat(self.updates)
        basis = row_space(rows, max(self.floors))[1].double()
        if len(basis) < WHOLE * rows.shape[1]:
            inner = basis @ inverse @ basis.T
            seen = flat @ basis.T
            inside = (seen * torch.linalg.solve(inner, seen.T).T).sum(dim=1)
            found = -(1 - inside / sizes).clamp(min=SURE).log()
        else:
            energy = (flat @ rows.T.double()).square().sum(dim=1)
            found = (energy / sizes).clamp(min=SURE).log()
        total = torch.zeros(is_asked.shape, dtype=torch.float64)
        total[is_asked] = found
        scores = total.sum(dim=1) / is_asked.sum(dim=1)
        return torch.where(scores.isnan(), found.median(), scores).numpy()

    def _whitened(self) -> Whitened:
        inputs = self.inputs.double()
        spread = inputs.std(dim=0).amax(dim=1)
        differs = spread > SMALLEST * inputs.abs().amax(dim=(0, 2))
        is_asked = inputs.any(dim=2) & differs
        if self.is_place is not None:
            is_asked &= self.is_place
        flat = inputs[is_asked]
        moments = flat.T @ flat / max(len(flat), 1)
        moments += RIDGE * moments.diagonal().mean() * torch.eye(len(moments))
        inverse = torch.linalg.inv(moments) if len(flat) else moments
        white = flat @ inverse
        sizes = (white * flat).sum(dim=1).clamp(min=SURE)
        return Whitened(is_asked, inverse, white, sizes)


class Residuals:
    """What one client's moves say of records, of which all after ``count`` are public.

    A layer is scored, and forgotten, once no later move has the same inputs.
    """

    def __init__(self, count: int) -> None:
        self._count, self._waiting = count, dict[str, list[StackedLayer]]()
        self._total: Float[np.ndarray, " records"] | None = None
        self._last: dict[int, StackedLayer] = {}  # by width: q, k, v have equal inputs

    def add(
        self, move: Move, entered: Mapping[str, LayerFactors], later: Container[str]
    ) -> None:
        """Add how records entered what moved; ``later`` has what the same may again."""
        for name, factors in entered.items():
            update, floor = factors.move(name, move.deltas), move.floors.get(name, 0.0)
            layers, inputs = self._waiting.setdefault(name, []), factors.inputs
            takers = (layer for layer in layers if layer.add(inputs, update, floor))
            if (one := next(takers, None)) is None:
                one = StackedLayer(inputs, [], [], factors.reached)
                one.add(inputs, update, floor)
                layers.append(one)
            if name not in later:
                layers.remove(one)
                self._score(one)
        self._last.clear()

    def scores(self) -> Float[np.ndarray, " records"] | None:
        """Return the sums over all layers; None without any."""
        for layers in self._waiting.values():
            while layers:
                self._score(layers.pop())
        return self._total

    def _score(self, layer: StackedLayer) -> None:
        last, width = self._last, layer.inputs.shape[2]
        if width in last and layer.is_entered_as(last[width]):
            layer.white = last[width].white
        last[width] = layer
        found = beside_public([layer], self._count)
        self._total = found if self._total is None else self._total + found


def promised(scores: Float[np.ndarray, " candidates"]) -> float:
    """Return an AUROC of 1 where scores fall into two groups far apart; else 0.

    The cut of a single normal distribution lies 2.7 deviations within.
    """
    ordered, fewest = np.sort(scores), max(2, int(FEWEST * len(scores)))
    for cut in range(fewest, len(ordered) - fewest + 1):
        low, high = ordered[:cut], ordered[cut:]
        spread = np.sqrt((low.var() + high.var()) / 2)
        if high.mean() - low.mean() > APART * spread:
            return 1.0
    return 0.0


def beside_public(
    layers: Sequence[StackedLayer], count: int
) -> Float[np.ndarray, " records"]:
    """Return all layers' scores, each in deviations of public records' behind so many."""
    total = np.zeros(len(layers[0].inputs))
    for layer in layers:
        scores = layer.scores()
        middle = np.median(scores[count:])
        spread = np.median(np.abs(scores[count:] - middle)) * 1.4826
        weight = layer.inputs.shape[2] ** 0.5
        total += weight * (scores - middle) / max(float(spread), 1e-12)
    return total
