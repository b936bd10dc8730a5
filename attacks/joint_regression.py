"""Joint regression: an upload as a sum of all candidates' own gradients."""

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.gradient_regression import Participation, over_rounds, took_part
from privaudit.auditing.record_gradients import (
    begins_alone,
    chosen_moves,
    gram_blocks,
    of_one_move,
    why_no_gradients,
)
from privaudit.auditing.signals import reference_records
from privaudit.core.lazy_torch import torch
from privaudit.federation.trainer import Records
from privaudit.models.interfaces import OwnersModel

MOST_COLUMNS = 8000  # of a Gram matrix: 512 MB


@ATTACKS.register("joint-regression")
@dataclass(frozen=True)
class JointRegression:
    """Score a candidate by how likely its gradient is a part of what was sent.

    What a client sends, less what it received, is a sum of its members' gradients along
    the way. So the move is solved for all candidates at once, with gradients averaged
    over the straight path by Simpson's rule, or Radau's where each is a step of the
    trainer, or where the path begins, of models that write; where a round is one step on
    a batch that is drawn, by its mixture; see
    :mod:`privaudit.auditing.gradient_regression`. It reads single uploads, sums of
    uploads, differences of broadcasts, and what was released less its public base. No
    shadow model is trained. In recorded federations public records stand for members
    that are no candidates.

    Source: derived from the gradient of a sum; the likelihood ratio of one record among
    others as noise is Michel, Basu, Kaufmann, "Sequential membership inference attacks",
    2026.

    Attributes:
        rounds: From so many, spread evenly, moves are taken; from half as many where a
            gradient costs two steps of a trainer. 0 takes all.
        reference: So many public records at most.
        labels: Whether the server knows candidates' labels. Where not, each is tried
            with every class, and the mean of its likelihoods taken: nearly the best
            one's. Nothing is promised then.
    """

    threshold: ClassVar[str] = "likelier in what was sent than not"
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"
    reads_uploads: ClassVar[Literal[True]] = True

    rounds: Annotated[int, Field(ge=0)] = 8
    reference: Annotated[int, Field(ge=1)] = 200
    labels: Literal["known", "unknown"] = "known"

    def why_not(self, adversary: Adversary, targets: Sequence[Target]) -> str:
        """Return what is missing: moves, their gradients, or enough numbers in them."""
        if self.labels == "unknown":
            if adversary.task.kind == "generation":
                return "Labels were said to be unknown, and texts have none to try."
            groups = of_one_move(adversary, targets)
            most = max(sum(len(one.candidates) for one in group) for group in groups)
            if most * _classes(adversary) > MOST_COLUMNS:
                return (
                    f"Labels were said to be unknown, and {most} records are to be "
                    f"tried with {_classes(adversary)} labels each; memory holds "
                    f"{MOST_COLUMNS} together."
                )
        return why_no_gradients(adversary, targets, self._rounds(adversary))

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates: log-likelihood ratios, in nats.

        Raises:
            ViewError: The view shows no moves of weights.
            AttackError: No gradients of single records are to be had.
        """
        found: dict[str, Scores] = {}
        for group in of_one_move(adversary, targets):
            scores = self._scores(adversary, group)
            found |= zip([target.client for target in group], scores, strict=True)
        return [found[target.client] for target in targets]

    def _rounds(self, adversary: Adversary) -> int:
        task = adversary.task
        once = isinstance(task.backbone, OwnersModel) or begins_alone(task)
        return self.rounds if once else (self.rounds + 1) // 2

    def _scores(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score targets whose moves are one: of one client, or of all in a sum."""
        candidates = Records.joined([target.candidates for target in targets])
        moves = chosen_moves(adversary, targets[0].client, self._rounds(adversary))
        public = None
        if isinstance(adversary.task.backbone, OwnersModel):
            public = reference_records(adversary, "regression", self.reference)
        tried = 1 if self.labels == "known" else _classes(adversary)
        asked = candidates if tried == 1 else _with_each_label(candidates, tried)
        share = adversary.batch_share
        if adversary.view.has_release_of(targets[0].client):
            share = 1.0  # of all rounds' batches together
        by_round = {
            move.at.index: [
                block
                if (block.labels, block.batch_share) == (tried, share)  # is fitted
                else replace(block, labels=tried, batch_share=share)
                for block in gram_blocks(adversary, move, asked, public)
            ]
            for move in moves
        }
        ends = np.cumsum([len(target.candidates) for target in targets])[:-1]
        each = {
            index: np.split(_ratios(took_part(blocks), len(candidates)), ends)
            for index, blocks in by_round.items()
        }
        blocks = [block for of_round in by_round.values() for block in of_round]
        found = over_rounds([*by_round.values()])
        # Prompts' paths are curved, and what shares promise there does not hold.
        promises = tried == 1 and all(block.is_layer for block in blocks)
        expected = found.expected_auroc if found and promises else 0.0
        return [
            Scores(
                one, one > 0, {i: part[n] for i, part in each.items()}, None, expected
            )
            for n, one in enumerate(np.split(_ratios(found, len(candidates)), ends))
        ]


def _classes(adversary: Adversary) -> int:
    return int(adversary.task.public.labels.max()) + 1


def _with_each_label(records: Records, classes: int) -> Records:
    """Return each record with every label, one beside the other."""
    each = records.pick(torch.arange(len(records)).repeat_interleave(classes))
    return replace(each, labels=torch.arange(classes).repeat(len(records)))


def _ratios(found: Participation | None, count: int) -> Float[np.ndarray, " n"]:
    """Return each candidate's ratio: of all its labels, the logarithm of the mean."""
    if found is None:
        return np.zeros(count)
    ratios = found.ratios.view(count, -1)
    return (ratios.logsumexp(dim=1) - log(ratios.shape[1])).numpy()
