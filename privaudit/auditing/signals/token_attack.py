"""What attacks on token distributions share: one table, many scores."""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, Field
from torch import Tensor

from privaudit.auditing.attack import Adversary, Scores, Target
from privaudit.auditing.signals.thresholds import public_threshold
from privaudit.core.errors import AttackError
from privaudit.core.storage import cache_folder
from privaudit.core.tensors import Tensors, stack
from privaudit.datasets.files.mapped_tensors import spilled
from privaudit.federated.trainer import Records
from privaudit.models.interfaces import OwnersModel
from privaudit.models.token_statistics import ALPHAS
from privaudit.models.token_table import CLAMPED_TOKENS, TOKENS, TokenTable


def _computed(alpha: float) -> float:
    if alpha not in ALPHAS:
        orders = ", ".join(f"{order:g}" for order in ALPHAS)
        raise ValueError(f"the orders that are computed are {orders}")
    return alpha


Order = Annotated[float, AfterValidator(_computed)]
FiniteOrder = Annotated[float, AfterValidator(_computed), Field(allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100)]
FARTHEST = 1e30  # a token that cannot come, as a finite score

TokenScore = Callable[[TokenTable, Records], Tensor]


def score_targets(
    adversary: Adversary,
    targets: Sequence[Target],
    score: TokenScore,
    *,
    clamped: bool = False,
) -> list[Scores]:
    """Score each target's candidates by what its model says token by token.

    The threshold is the median score of public records, each class weighted as among
    the candidates: half of those who are no members are called members.

    Args:
        adversary: Who asks.
        targets: Clients under attack.
        score: Makes a score for each record of what the model says.
        clamped: Whether to use the statistics as they were published.

    Raises:
        ConfigError: The models do not answer in words, or a record has no position to
            be scored at.
    """
    return [_score(adversary, target, score, clamped) for target in targets]


def _score(
    adversary: Adversary, target: Target, score: TokenScore, clamped: bool
) -> Scores:
    def of(records: Records) -> Float[np.ndarray, " records"]:
        model = target.reconstructed.model
        table = table_of(adversary, records, model, clamped=clamped)
        return score(table, records).clamp(-FARTHEST, FARTHEST).numpy()

    public, candidates = adversary.task.public, target.candidates
    scores = of(candidates)
    threshold = public_threshold(of(public), public.labels, candidates.labels)
    return Scores(scores, scores > threshold)


def table_of(
    adversary: Adversary, records: Records, model: Tensors, *, clamped: bool = False
) -> TokenTable:
    """Return what a model says about records, token by token; asked once.

    Every attack of one adversary on one model shares the table.

    Raises:
        ConfigError: The model does not answer in words.
    """
    wanted = CLAMPED_TOKENS if clamped else TOKENS
    return adversary.once(
        ("tokens", wanted),
        lambda: _ask(adversary, records, model, wanted),
        model,
        records,
    )


def _ask(
    adversary: Adversary, records: Records, model: Tensors, wanted: str
) -> TokenTable:
    is_owners = isinstance(adversary.task.backbone, OwnersModel)
    generates = is_owners and adversary.task.kind == "generation"
    if records.words is None and not generates:
        raise AttackError(
            "An attack on token distributions was requested, but these records hold no "
            "words. Use a data set with questions or captions, and a model that "
            "generates text."
        )
    chunks = adversary.trainer.query(
        adversary.task, stack([model]), records, want=frozenset({wanted})
    )
    # Each attack reads them again: of pictures with many tokens they are large.
    table = TokenTable.from_signals(list(chunks))
    return TokenTable.of(spilled(table.to_signals(), cache_folder()))
