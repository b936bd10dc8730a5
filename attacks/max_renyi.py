"""MaxRenyi-K%: a record at which the model is nowhere unsure was trained on."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN
from privaudit.auditing.signals.token_attack import Order, Percent, score_targets
from privaudit.auditing.signals.token_scores import max_renyi
from privaudit.federated.trainer import Records
from privaudit.models.token_table import Slice, TokenTable


@ATTACKS.register("max-renyi")
@dataclass(frozen=True)
class MaxRenyi:
    """Score a candidate by minus the mean of its largest token-wise Renyi entropies.

    It needs no target tokens, so a picture's can be scored too.

    Source: Li et al., "Membership inference attacks against large vision-language
    models", NeurIPS 2024; on reconstructed models as in FedRand, equation 11.
    Neither fixes alpha for all models. The default 2, of 0.5, 1, 2 and infinity,
    neither follows the many words that are never said, as 0.5 does, nor looks at the
    likeliest alone, as infinity does.

    Attributes:
        alpha: Order of the entropy: 0.5, 1, 2 or infinity.
        share: K in percent: 0 is the largest entropy alone, 100 the mean of all.
        slice: Which tokens of a record are scored.
        all_positions: Whether the next token may lie outside of the slice; published
            is that it may not.
        published: Clamp probabilities as the published code does.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"

    alpha: Order = 2.0
    share: Percent = 10.0
    slice: Slice = "description"
    all_positions: bool = False
    published: bool = False

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in [-log vocabulary, 0]."""
        return score_targets(adversary, targets, self._score, clamped=self.published)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return max_renyi(
            table, self.slice, self.alpha, self.share, all_positions=self.all_positions
        )
