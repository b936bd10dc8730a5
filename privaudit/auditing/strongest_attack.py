"""The strongest attack of an adversary that can play weaker ones' scenarios too.

An audit makes the named attack of each weaker scenario. Whoever wants their other
attacks as well, those with shadow models among them, audits the weaker scenarios and
asks here: the best of all of them is the stronger adversary's, and was picked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.dominated_views import attack_in_place
from privaudit.core.errors import ConfigError
from privaudit.statistics.comparisons import holm, p_above_chance


@dataclass(frozen=True)
class Strongest:
    """The attack with the largest AUROC of those that show a leak.

    Attributes:
        scenario: In whose audit it was made.
        leak: What it found. It was picked, so its AUROC looks larger than it is.
        p_value: Of no leak, corrected by Holm's method over all attacks.
        shown: How many attacks show a leak, so corrected.
        tried: How many there are.
    """

    scenario: str
    leak: AttackResult
    p_value: float
    shown: int
    tried: int


def strongest_of(
    audit: Audit, weaker: Sequence[Audit] = (), alpha: float = 0.05
) -> Strongest | None:
    """Return the strongest attack of an audit and of weaker scenarios' on the same run.

    Where nothing leaks, at most a share ``alpha`` of such questions names any attack.

    Args:
        audit: Of the stronger scenario.
        weaker: Of scenarios that it dominates.
        alpha: Of all attacks together, in (0, 1).

    Returns:
        None if none shows a leak.

    Raises:
        ConfigError: An audit is of another run, or of a scenario that is not weaker.
    """
    for other in weaker:
        _refuse_other(audit, other)
    again = {attack_in_place(n, a.scenario.name) for a in weaker for n in a.results}
    tried = [
        (one.scenario.name, leak)
        for one in (audit, *weaker)
        for name, leak in one.results.items()
        if one is not audit or name not in again
    ]
    adjusted = holm([p_above_chance(leak.auroc) for _, leak in tried])
    shown = [(*one, float(p)) for one, p in zip(tried, adjusted, strict=True)]
    shown = [one for one in shown if one[2] <= alpha]
    if not shown:
        return None
    scenario, leak, p_value = max(shown, key=lambda one: one[1].auroc.value)
    return Strongest(scenario, leak, p_value, len(shown), len(tried))


def _refuse_other(audit: Audit, other: Audit) -> None:
    if other.run.path != audit.run.path:
        raise ConfigError(
            f"The audits are of {audit.run.name} and of {other.run.name}, and one "
            "adversary looks at one run. Give audits of one run."
        )
    if other.scenario.name not in audit.scenario.dominates:
        known = ", ".join(audit.scenario.dominates) or "none"
        raise ConfigError(
            f"{other.scenario.name} is not weaker than {audit.scenario.name}: what its "
            f"adversary sees is no function of the other's view. Weaker are: {known}."
        )
