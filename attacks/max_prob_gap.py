"""Max probability gap: a record at which the model is decided was trained on."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN
from privaudit.auditing.signals.token_attack import score_targets
from privaudit.auditing.signals.token_scores import max_prob_gap
from privaudit.federated.trainer import Records
from privaudit.models.token_table import Slice, TokenTable


@ATTACKS.register("max-prob-gap")
@dataclass(frozen=True)
class MaxProbGap:
    """Score a candidate by the mean gap of the most likely token to the second.

    It needs no target tokens, so a picture's can be scored too.

    Source: Li et al., "Membership inference attacks against large vision-language
    models", NeurIPS 2024, where it is a baseline.

    Attributes:
        slice: Which tokens of a record are scored.
        all_positions: Whether the next token may lie outside of the slice; published
            is that it may not.
        published: Take the lead in log-probability, over the second distinct value, as
            the published code does.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"

    slice: Slice = "description"
    all_positions: bool = False
    published: bool = False

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in [0, 1]; as published at least 0."""
        return score_targets(adversary, targets, self._score, clamped=self.published)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return max_prob_gap(
            table,
            self.slice,
            of_logarithms=self.published,
            all_positions=self.all_positions,
        )
