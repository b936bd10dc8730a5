"""Token loss: a text that the model foresees was trained on."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN
from privaudit.auditing.signals.token_attack import score_targets
from privaudit.auditing.signals.token_scores import mean_log_likelihood
from privaudit.federated.trainer import Records
from privaudit.models.token_table import TokenTable, WordSlice


@ATTACKS.register("token-loss")
@dataclass(frozen=True)
class TokenLoss:
    """Score a candidate by the mean log-probability of its tokens.

    Its perplexity, exp of minus that, puts candidates in the same order.

    Source: Yeom et al., "Privacy risk in machine learning: analyzing the connection to
    overfitting", CSF 2018, adversary 1; token by token as Carlini et al., "Extracting
    training data from large language models", USENIX Security 2021.

    Attributes:
        slice: Which tokens of a record are scored.
        all_positions: Whether the slice's first token counts, too; published is that
            it does not.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"

    slice: WordSlice = "description"
    all_positions: bool = True

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, at most 0."""
        return score_targets(adversary, targets, self._score)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return mean_log_likelihood(table, self.slice, all_positions=self.all_positions)
