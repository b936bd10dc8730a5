"""ModRenyi: a record whose tokens the model takes for certain was trained on."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN
from privaudit.auditing.signals.token_attack import FiniteOrder, score_targets
from privaudit.auditing.signals.token_scores import mod_renyi
from privaudit.federated.trainer import Records
from privaudit.models.token_table import TokenTable, WordSlice


@ATTACKS.register("mod-renyi")
@dataclass(frozen=True)
class ModRenyi:
    """Score a candidate by minus the mean modified Renyi entropy of its tokens.

    Source: Li et al., "Membership inference attacks against large vision-language
    models", NeurIPS 2024; for alpha 1 the modified entropy of Song and Mittal,
    "Systematic evaluation of privacy risks of machine learning models", USENIX
    Security 2021.

    Attributes:
        alpha: Order of the entropy: 0.5, 1 or 2.
        slice: Which tokens of a record are scored.
        all_positions: Whether the slice's first token counts, too; published is that
            it does not.
        published: Clamp probabilities as the published code does.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"

    alpha: FiniteOrder = 2.0
    slice: WordSlice = "description"
    all_positions: bool = True
    published: bool = False

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, at most 0."""
        return score_targets(adversary, targets, self._score, clamped=self.published)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return mod_renyi(
            table, self.slice, self.alpha, all_positions=self.all_positions
        )
