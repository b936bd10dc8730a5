"""How many shadow models a budget pays for: on every machine the same number.

A budget is time of one core of a reference machine, and work is counted, not timed: the
floating-point operations of two shadows of one client, trained and asked as all of them
will be. A clock would give every machine, and every load of it, another number of
shadows, and so another audit. Nothing is scored before the number stands.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.shadow_models import needs_federations, shadow_signals
from privaudit.core.errors import ConfigError, shown
from privaudit.core.formatting import write_time
from privaudit.models.interfaces import TaskKind
from privaudit.statistics.progress import Phase

RATE = 1e10
"""Operations a second of the reference: one core of a server of 2020, on the embedded
models. With 11 to 25 thousand million measured (docs/decisions/0012-headline.md) a
budget is rather not used up than exceeded."""
LADDER = (8, 16, 32, 64)
"""What is trained is one of these: a count that changes a little changes no audit."""
USUAL_SECONDS: Mapping[TaskKind, float] = {"classification": 120.0, "generation": 0.0}
"""Of an audit that names no budget: a model that writes takes minutes for one shadow."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Return a budget in seconds.

    Raises:
        ConfigError: It is no time above 0.

    Example:
        >>> parse_budget("2m"), parse_budget("1.5h")
        (120.0, 5400.0)
    """
    found = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([smh])", text, re.ASCII)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not seconds:
        raise ConfigError(
            f"A budget of {shown(text)} was given. Use a time of one core of the "
            "reference machine, such as 90s, 2m or 1h; or --shadows N for a number."
        )
    return seconds


def budget_text(seconds: float) -> str:
    """Return a budget as :func:`parse_budget` reads it, to the last digit.

    Example:
        >>> budget_text(120.0), parse_budget(budget_text(1.001 * 3600))
        ('120s', 3603.5999999999995)
    """
    texts = [f"{seconds / factor:.10g}{unit}" for unit, factor in _SECONDS.items()]
    exact = [text for text in texts if _is(text, seconds)]
    return exact[0] if exact else f"{seconds:.3f}s"


def _is(text: str, seconds: float) -> bool:
    try:
        return parse_budget(text) == seconds
    except ConfigError:  # too many digits in this unit
        return False


@dataclass(frozen=True)
class ShadowBudget:
    """What a budget pays for.

    Attributes:
        seconds: The budget, of one core of the reference machine.
        each: Likewise what one shadow of every attacked client takes.
        shadows: How many each gets: a rung of ``LADDER``; 0 if it pays for none.
    """

    seconds: float
    each: float
    clients: int
    shadows: int

    @property
    def sentence(self) -> str:
        """What was planned, and what to do where it came to nothing."""
        budget, whom = write_time(self.seconds), f"each of {self.clients} clients"
        if self.clients == 1:
            whom = "1 client"
        if self.shadows:
            cost = write_time(self.each * self.shadows)
            return (
                f"The budget of {budget} pays for {self.shadows} shadow models of "
                f"{whom} ({cost}, counted as operations of a reference core)."
            )
        cost = write_time(1.05 * self.each * LADDER[0])
        return (
            f"The budget of {budget} does not pay for {LADDER[0]} shadow models of "
            f"{whom}, so that no attack with shadow models was made: that takes "
            f"{cost} of a reference core. Use --budget {cost}, or --shadows "
            f"{LADDER[0]} if this machine is faster."
        )


def plan_shadows(
    adversary: Adversary,
    targets: Sequence[Target],
    clients: int | Literal["all"],
    seconds: float,
) -> ShadowBudget:
    """Return how many shadows of its targets an adversary trains.

    The client with the median number of candidates stands for all, but where whole
    federations are trained, which have all of them.
    """
    from privaudit.core.operations import count_operations

    adversary.tell(Phase("", "shadows", "the budget", 0, 1))
    chosen = list(targets if clients == "all" else targets[:clients])
    counted = chosen
    if not needs_federations(adversary, chosen):
        ranked = sorted(chosen, key=lambda target: len(target.candidates))
        counted = [ranked[len(ranked) // 2]]
    alone = replace(adversary, store=None, watcher=None)  # nothing is kept of these
    pair = count_operations(lambda: shadow_signals(alone, counted, 2, "candidates"))
    each = pair / 2 * len(chosen) / len(counted) / RATE
    paid = [rung for rung in LADDER if rung * each <= seconds]
    return ShadowBudget(seconds, each, len(chosen), paid[-1] if paid else 0)
