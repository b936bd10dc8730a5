"""Joint regression: an upload as a sum of all candidates' own gradients."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.gradient_regression import Participation, took_part
from privaudit.auditing.record_gradients import (
    chosen_moves,
    gram_blocks,
    why_no_gradients,
)
from privaudit.auditing.signals import reference_records
from privaudit.federation.trainer import Records
from privaudit.models.interfaces import OwnersModel


@ATTACKS.register("joint-regression")
@dataclass(frozen=True)
class JointRegression:
    """Score a candidate by how likely its gradient is a part of what was sent.

    What a client sends, less what it received, is a sum of its members' gradients along
    the way. So the move is solved for all candidates at once, with gradients averaged
    over the straight path by Simpson's rule, or taken in its middle where each is a step
    of the trainer; see :mod:`privaudit.auditing.gradient_regression`. It reads single
    uploads, sums of uploads, and differences of broadcasts. No shadow model is trained.
    In recorded federations public records stand for members that are no candidates.

    Source: derived from the gradient of a sum; the likelihood ratio of one record among
    others as noise is Michel, Basu, Kaufmann, "Sequential membership inference attacks",
    2026.

    Attributes:
        rounds: From so many, spread evenly, moves are taken; 0 takes all.
        reference: So many public records at most.
    """

    threshold: ClassVar[str] = "likelier in what was sent than not"
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"

    rounds: Annotated[int, Field(ge=0)] = 8
    reference: Annotated[int, Field(ge=1)] = 200

    def why_not(self, adversary: Adversary, targets: Sequence[Target]) -> str:
        """Return what is missing: moves, their gradients, or enough numbers in them."""
        return why_no_gradients(adversary, targets, self.rounds)

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates: log-likelihood ratios, in nats.

        Raises:
            ViewError: The view shows no moves of weights.
            AttackError: No gradients of single records are to be had.
        """
        sees_uploads = all(adversary.view.sees_updates_of(t.client) for t in targets)
        groups = [[t] for t in targets] if sees_uploads else [list(targets)]
        return [s for group in groups for s in self._scores(adversary, group)]

    def _scores(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score targets whose moves are one: of one client, or of all in a sum."""
        candidates = Records.joined([target.candidates for target in targets])
        moves = chosen_moves(adversary, targets[0].client, self.rounds)
        public = None
        if isinstance(adversary.task.backbone, OwnersModel):
            public = reference_records(adversary, "regression", self.reference)
        by_round = {
            move.at.index: gram_blocks(adversary, move, candidates, public)
            for move in moves
        }
        ends = np.cumsum([len(target.candidates) for target in targets])[:-1]
        each = {
            index: np.split(_ratios(took_part(blocks), len(candidates)), ends)
            for index, blocks in by_round.items()
        }
        blocks = [block for of_round in by_round.values() for block in of_round]
        found = took_part(blocks)
        # Prompts' paths are curved, and what shares promise there does not hold.
        promises = found is not None and all(block.is_layer for block in blocks)
        expected = found.expected_auroc if found and promises else 0.0
        return [
            Scores(
                one, one > 0, {i: part[n] for i, part in each.items()}, None, expected
            )
            for n, one in enumerate(np.split(_ratios(found, len(candidates)), ends))
        ]


def _ratios(found: Participation | None, count: int) -> Float[np.ndarray, " n"]:
    return np.zeros(count) if found is None else found.ratios.numpy()
