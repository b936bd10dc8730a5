"""Projection residual: does a record lie in the span of what entered the layers?"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from itertools import zip_longest
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.record_gradients import (
    NO_MOVES,
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
from privaudit.core.errors import AttackError, ViewError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.federation.trainer import LearnsPrompt, Records, Task, Trainer
from privaudit.models.layer_factors import LayerFactors, row_space, where_reached

Places = dict[str, Tensor]  # which of a record are asked about, by layer
Entered = Mapping[str, LayerFactors]

NO_LAYERS = (
    "What was sent multiplies no layer's inputs: prompts, or a model outside of torch."
)
ALL_ALIKE = (
    "What enters the layers that were sent is the same for all records, as classes' names "
    "are: nothing of it tells one from another."
)
FEW = 8  # candidates, of so many clients, of which two differ
APART = 6.0  # deviations between two groups of scores that are certain
FEWEST = 0.1  # of the scores, in the smaller group
WHOLE = 0.8  # of the columns: a span beyond it leaves nothing outside
SURE = 1e-12  # of an input's squared length outside: less says no more
ALIKE = 1e-4  # of a layer's largest number: other batches round otherwise
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
    reads_uploads: ClassVar[Literal[True]] = True

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
        some = Records.joined(
            [
                target.candidates.pick(torch.arange(min(len(target.candidates), FEW)))
                for target in targets[:FEW]
            ]
        )
        moves = [move for _, move in self._moves(adversary, targets)]
        sent = set().union(*(move.deltas for move in moves))
        models = {frozenset(move.received): move.received for move in moves}
        try:
            entered = [
                layers_of(adversary, model, some, sent, has_gradients=False)
                for model in models.values()
            ]
            if not any(entered):
                return NO_LAYERS
            layers = [one for found in entered for one in found.values()]
            tells = len(some) == 1 or any(bool(differ(one).any()) for one in layers)
            return "" if tells else ALL_ALIKE
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

    def _moves(
        self, adversary: Adversary, targets: Sequence[Target]
    ) -> list[tuple[int, Move]]:
        """Return all targets' moves, each with its target's position."""
        return [
            (number, move)
            for number, target in enumerate(targets)
            for move in chosen_moves(adversary, target.client, self.rounds)
        ]

    def _residuals(
        self, adversary: Adversary, targets: Sequence[Target], public: Records
    ) -> list["Residuals"]:
        """Return what moves say of each target's candidates, and of public records.

        Broadcast after broadcast, so that public records enter each model once. Which
        places their losses depend on, gradients say at the last one, of one record of
        each layout: in the first one factors may still be zero.
        """
        shown = self._moves(adversary, targets)
        moves = [move for _, move in shown]
        if not moves:
            raise ViewError(NO_MOVES)
        sent = set().union(*(move.deltas for move in moves))
        latest = max(moves, key=lambda move: move.at.index).received

        def reached(records: Records) -> Places:
            first = alike = torch.arange(len(records))
            if records.words is not None:
                layouts, alike = records.words.kinds.unique(dim=0, return_inverse=True)
                none = torch.full(layouts.shape[:1], len(records))
                first = none.scatter_reduce(0, alike, first, "amin")
            some = records.pick(first)
            found = where_reached(layers_of(adversary, latest, some, sent))
            return {name: one.there[alike] for name, one in found.items()}

        def entered(move: Move, records: Records, places: Places) -> Entered:
            model = move.received
            found = layers_of(adversary, model, records, sent, has_gradients=False)
            return {
                name: replace(one, is_place=places.get(name, one.there))
                for name, one in found.items()
            }

        own_places = [reached(target.candidates) for target in targets]
        public_places = reached(public)
        found = [Residuals() for _ in targets]
        groups = [[shown[one] for one in group] for group in of_one_broadcast(moves)]
        of_public = entered(groups[0][0][1], public, public_places)
        for group, following in zip_longest(groups, groups[1:]):
            after = entered(following[0][1], public, public_places) if following else {}
            stays = {
                name
                for name in of_public.keys() & after.keys()
                if of_public[name].has_inputs_of(after[name])
            }
            for number, move in group:
                own = entered(move, targets[number].candidates, own_places[number])
                found[number].add(move, own, of_public, stays)
            of_public = after
        return found


def differ(entered: LayerFactors) -> Bool[Tensor, " places"]:
    """Return at which places what enters differs between records, beyond rounding.

    A place that a single record has differs.
    """
    inputs, there = entered.inputs, entered.there
    if entered.is_place is not None:  # an absent place takes what another record has
        of_another = inputs[there.int().argmax(dim=0), torch.arange(there.shape[1])]
        inputs = torch.where(there[..., None], inputs, of_another)
    lowest, highest = inputs.amin(dim=0), inputs.amax(dim=0)
    largest = torch.maximum(highest, -lowest).amax(dim=1)
    ranges = (highest - lowest).amax(dim=1)
    return (ranges > ALIKE * largest) | (there.sum(dim=0) == 1)


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
    """What enters a layer where it says something: W x, where W'W = S^-1."""

    is_asked: Bool[Tensor, "records places"]
    whitening: Float[Tensor, "d d"]  # W
    flat: Float[Tensor, "asked d"]


@plain_dataclass(eq=False)
class StackedLayer:
    """One layer's updates, stacked, and what entered it.

    Attributes:
        entered: How candidates entered it, and how public records did.
        updates: Each scaled to length 1.
        floors: Deviation of a number of each by rounding alone.
        white: The inputs, once they were whitened.
    """

    entered: Sequence[LayerFactors]
    updates: list[Float[Tensor, "m d"]] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    white: Whitened | None = None

    def add(self, update: Float[Tensor, "m d"], floor: float) -> None:
        """Stack an update on others."""
        size = float(update.norm())
        if size > 0:
            self.updates.append(update / size)
            self.floors.append(floor / size)

    def is_entered_by(self, others: Sequence[LayerFactors]) -> bool:
        """Return whether the same is asked about at the same places."""
        pairs = zip(self.entered, others, strict=True)
        return all(one.has_inputs_of(other) for one, other in pairs)

    def scores(self) -> Float[np.ndarray, " records"]:
        """Return the records' scores, means over places that differ between them.

        Inputs of zeros say nothing; a record of such alone has the others' median.
        """
        is_asked, whitening, flat = self.white = self.white or self._whitened()
        if not self.updates or not len(flat):
            return np.zeros(len(is_asked))
        rows = torch.cat(self.updates)
        basis = row_space(rows, max(self.floors))[1].double()
        if len(basis) < WHOLE * rows.shape[1]:
            span = torch.linalg.qr(whitening @ basis.T)[0].float()
            seen = flat @ span
            inside, outside = _lengths(seen), _lengths(flat - seen @ span.T)
            found = -(outside / (inside + outside)).clamp(min=SURE).log()
        else:
            energy = _lengths(flat @ (whitening @ rows.T.double()).float())
            found = (energy / _lengths(flat)).clamp(min=SURE).log()
        total = torch.zeros(is_asked.shape, dtype=torch.float64)
        total[is_asked] = found
        scores = total.sum(dim=1) / is_asked.sum(dim=1)
        return torch.where(scores.isnan(), found.nanmedian(), scores).numpy()

    def _whitened(self) -> Whitened:
        factors = LayerFactors.join(self.entered, 0)
        is_asked = factors.inputs.any(dim=2) & differ(factors) & factors.there
        flat = factors.inputs[is_asked].float()
        moments = (flat.T @ flat).double() / max(len(flat), 1)  # any metric would do
        moments += RIDGE * moments.diagonal().mean() * torch.eye(len(moments))
        values, vectors = torch.linalg.eigh(moments)  # Cholesky is not portable
        whitening = (vectors / values.clamp(min=SURE).sqrt()).T
        return Whitened(is_asked, whitening, flat @ whitening.T.float())


def _lengths(rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return squared lengths, in double precision."""
    return rows.square().sum(dim=1).double()


class Residuals:
    """What one client's moves say of its candidates, and of public records behind them."""

    def __init__(self) -> None:
        self._waiting: dict[str, StackedLayer] = {}
        self._total: Float[np.ndarray, " records"] | None = None
        self._last: dict[int, StackedLayer] = {}  # by width: q, k, v have equal inputs

    def add(
        self, move: Move, entered: Entered, public: Entered, stays: Container[str]
    ) -> None:
        """Add how candidates, and public records, entered what moved.

        Layers that no later move enters alike are scored and forgotten; ``stays`` has
        the others.
        """
        for name, own in entered.items():
            if name not in public or name not in move.deltas:
                continue
            both = own, public[name]
            if own.bias not in move.deltas:
                both = own.without_bias(), public[name].without_bias()
            update, floor = both[0].move(name, move.deltas), move.floors.get(name, 0.0)
            if name in self._waiting and not self._waiting[name].is_entered_by(both):
                self._score(name)
            self._waiting.setdefault(name, StackedLayer(both)).add(update, floor)
            if name not in stays:
                self._score(name)
        self._last.clear()

    def scores(self) -> Float[np.ndarray, " records"] | None:
        """Return the sums over all layers; None without any."""
        while self._waiting:
            self._score(next(iter(self._waiting)))
        return self._total

    def _score(self, name: str) -> None:
        layer, last = self._waiting.pop(name), self._last
        width = layer.entered[0].inputs.shape[2]
        if width in last and layer.is_entered_by(last[width].entered):
            layer.white = last[width].white
        last[width] = layer
        found = beside_public(layer)
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


def beside_public(layer: StackedLayer) -> Float[np.ndarray, " records"]:
    """Return a layer's scores, in deviations of public records'."""
    own, _ = layer.entered
    scores, count = layer.scores(), len(own.inputs)
    middle = np.median(scores[count:])
    spread = np.median(np.abs(scores[count:] - middle)) * 1.4826
    weight = own.inputs.shape[2] ** 0.5
    return weight * (scores - middle) / max(float(spread), 1e-12)
