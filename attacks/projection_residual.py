"""Projection residual: does a record lie in the span of what entered the layers?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.record_gradients import Move, chosen_moves, layers_of
from privaudit.auditing.row_span import rounding, row_space
from privaudit.auditing.signals import (
    PUBLIC_MEDIAN,
    public_threshold,
    reference_records,
)
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import LearnsPrompt, Records, Task, Trainer

SMALLEST = 1e-6  # of the largest singular value: arithmetic in float32
SHORT = 0.8  # of the rows: a rank beyond it is bounded by the layer, not by records
RIDGE = 1e-3  # of the mean square of an input's numbers


@ATTACKS.register("projection-residual")
@dataclass(frozen=True)
class ProjectionResidual:
    """Score a candidate by how far its layer inputs are from an update's row space.

    The update of a dense layer is a sum of outer products of output gradients with the
    client's own inputs, so its rows lie in their span. Where the update's rank says that
    the span is whole, the score is minus the logarithm of the part of an input outside
    of it, by singular vectors above the rounding of what was sent. Where the layer has
    fewer rows than the client has inputs, it is the energy |U S^-1 x|^2 / (x' S^-1 x), S
    the inputs' second moments. Places (tokens) of a record are averaged, and uploads of
    one client stacked where inputs did not move. Neither needs a label.

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

    rounds: Annotated[int, Field(ge=0)] = 20
    reference: Annotated[int, Field(ge=1)] = 200

    @staticmethod
    def applies_to(trainer: Trainer, task: Task | None) -> bool:
        """Return whether anything that is sent may multiply what enters a layer."""
        return not isinstance(trainer, LearnsPrompt)

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates; 0 is the median public record.

        Raises:
            ViewError: The view shows no moves of weights.
            AttackError: No layer's inputs are to be had.
        """
        public = reference_records(adversary, "projection", self.reference)
        return [self._score(adversary, target, public) for target in targets]

    def _score(self, adversary: Adversary, target: Target, public: Records) -> Scores:
        moves = chosen_moves(adversary, target.client, self.rounds)
        both = Records.joined([target.candidates, public])
        layers = [*_layers(adversary, moves, both)]
        if not layers:
            raise AttackError(
                "Inputs of layers were requested, and what was sent multiplies none: "
                "prompts, or a model outside of torch. Use joint-regression."
            )
        count = len(target.candidates)
        total = np.sum([_beside(layer.scores(), count) for layer in layers], axis=0)
        scores, others = total[:count], total[count:]
        labels = public.labels, target.candidates.labels
        return Scores(scores, scores > public_threshold(others, *labels))


@plain_dataclass
class _Layer:
    """One layer's updates, stacked, and the inputs that entered it.

    Attributes:
        updates: Each scaled to length 1.
        floors: Deviation of a number of each by rounding alone.
    """

    inputs: Float[Tensor, "records places d"]
    updates: list[Float[Tensor, "m d"]]
    floors: list[float]

    def add(self, inputs: Tensor, update: Tensor, floor: float) -> bool:
        """Stack an update on others; False where other inputs entered."""
        if self.updates and not torch.equal(self.inputs, inputs):
            return False
        size = float(update.norm())
        if size > 0:
            self.updates.append(update / size)
            self.floors.append(floor / size)
        return True

    def scores(self) -> Float[np.ndarray, " records"]:
        """Return the records' scores, means over places that differ between them."""
        if not self.updates:
            return np.zeros(len(self.inputs))
        rows = torch.cat(self.updates)
        places = self.inputs.std(dim=0).amax(dim=1) > 0
        inputs = self.inputs[:, places].double()
        values, span = row_space(rows)
        noise = 1.1 * max(self.floors) * (rows.shape[0] ** 0.5 + rows.shape[1] ** 0.5)
        rank = int((values > max(noise, SMALLEST * float(values[0]))).sum())
        if rank < SHORT * min(rows.shape):
            basis = span[:rank]
            outside = (inputs - inputs @ basis.T @ basis).norm(dim=2)
            shares = outside / inputs.norm(dim=2).clamp(min=1e-30)
            return (-shares.clamp(min=1e-9).log()).mean(dim=1).numpy()
        flat = inputs.flatten(0, 1)
        moments = flat.T @ flat / len(flat)
        moments += RIDGE * moments.diagonal().mean() * torch.eye(len(moments))
        white = torch.linalg.solve(moments, flat.T).T
        energy = (white @ rows.T).square().sum(dim=1) / (white * flat).sum(dim=1)
        return energy.log().view(inputs.shape[:2]).mean(dim=1).numpy()


def _layers(
    adversary: Adversary, moves: Sequence[Move], records: Records
) -> Iterator[_Layer]:
    """Yield layers with their updates, those of one input together."""
    found: dict[str, list[_Layer]] = {}
    for move in moves:
        for name, factors in layers_of(adversary, move.received, records).items():
            if name not in move.deltas:
                continue
            update, stacks = factors.move(name, move.deltas), found.setdefault(name, [])
            floor = rounding(move.received[name])
            inputs = factors.inputs
            if not any(one.add(inputs, update, floor) for one in stacks):
                stacks.append(_Layer(inputs, [], []))
                stacks[-1].add(inputs, update, floor)
    for stacks in found.values():
        yield from stacks


def _beside(
    scores: Float[np.ndarray, " records"], count: int
) -> Float[np.ndarray, " records"]:
    """Return scores in deviations of public ones, which stand behind the candidates."""
    others = scores[count:]
    middle = np.median(others)
    spread = np.median(np.abs(others - middle)) * 1.4826
    return (scores - middle) / max(float(spread), 1e-12)
