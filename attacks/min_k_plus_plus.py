"""Min-K%++: Min-K%, measured against what else could have come."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN
from privaudit.auditing.signals.token_attack import Percent, score_targets
from privaudit.auditing.signals.token_scores import min_k_plus_plus
from privaudit.federated.trainer import Records
from privaudit.models.token_table import TokenTable, WordSlice


@ATTACKS.register("min-k-plus-plus")
@dataclass(frozen=True)
class MinKPlusPlus:
    """Score a candidate by its tokens' lowest standardised log-probabilities.

    From a token's log-probability the mean under the model is taken, and the rest is
    divided by the deviation: training makes what came a mode.

    Source: Zhang et al., "Min-K%++: improved baseline for detecting pre-training data
    from large language models", ICLR 2025, with K 20 as Min-K%.

    Attributes:
        share: K in percent: 0 is the lowest alone, 100 the mean of all.
        slice: Which tokens of a record are scored.
        all_positions: Whether the slice's first token counts, too; published is that
            it does not.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"

    share: Percent = 20.0
    slice: WordSlice = "description"
    all_positions: bool = True

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates."""
        return score_targets(adversary, targets, self._score)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return min_k_plus_plus(
            table, self.slice, self.share, all_positions=self.all_positions
        )
