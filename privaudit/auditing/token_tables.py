"""Token tables: what a model says token by token, asked once for all attacks."""

from typing import Annotated

from pydantic import AfterValidator, Field

from privaudit.auditing.attack import Adversary
from privaudit.core.errors import AttackError
from privaudit.core.storage import cache_folder
from privaudit.core.tensors import Tensors, stack
from privaudit.datasets.files.mapped_tensors import spilled
from privaudit.federation.trainer import Records
from privaudit.models.interfaces import OwnersModel
from privaudit.models.token_table import (
    ALPHAS,
    CLAMPED_TOKENS,
    TOKENS,
    TokenTable,
    joined_signals,
)


def _computed(alpha: float) -> float:
    if alpha not in ALPHAS:
        orders = ", ".join(f"{order:g}" for order in ALPHAS)
        raise ValueError(f"the orders that are computed are {orders}")
    return alpha


Order = Annotated[float, AfterValidator(_computed)]
FiniteOrder = Annotated[float, AfterValidator(_computed), Field(allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100)]


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
    order = records.by_length
    chunks = adversary.trainer.query(
        adversary.task, stack([model]), records.pick(order), want=frozenset({wanted})
    )
    back, joined = order.argsort(), joined_signals(list(chunks))
    signals = {name: values[back] for name, values in joined.items()}
    # Each attack reads them again: of pictures with many tokens they are large.
    return TokenTable.of(spilled(signals, cache_folder()))
