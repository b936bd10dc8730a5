"""Strength of attacks and of the gate's settings: what is weaker than what.

This is the only place that orders them. A setting of an attack that is not listed has
no known order: made otherwise, it is neither weaker nor stronger, but another attack.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from privaudit.auditing.audit import Audit
from privaudit.auditing.named_attacks import (
    attack_in_place,
    count,
    shadows_of,
    written_settings,
)
from privaudit.auditing.scenario import find_plan
from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.settings import GateSettings

Relation = Literal["same", "stronger", "weaker", "another"]
Made = Mapping[str, "AttackStrength"]

MORE_IS_STRONGER = ("shadows", "neighbours", "directions")
"""Settings of attacks: numbers of models or queries that one statistic is taken over."""
FEWEST = 5  # shadow models: with fewer an attack is not made (find_scenario)


@dataclass(frozen=True)
class AttackStrength:
    """How an attack was made: all that its scores depend on but the seed.

    Attributes:
        settings: Its parameters, as ``repr`` writes them; None where nothing is said.
        package: Whose plugin it is, with its version; empty for a built-in one.
        clients: Whom it attacked; empty where nothing is said.
        n: Members and non-members.
    """

    settings: str | None
    package: str = ""
    clients: tuple[str, ...] = ()
    n: tuple[int, ...] = ()

    @property
    def shadows(self) -> int | None:
        """How many shadow models it trained a client; None if it trains none."""
        return shadows_of(self.settings)

    def than(self, other: "AttackStrength") -> tuple[Relation, str]:
        """Return how this compares with another, and by what."""
        if other.settings is None:
            return "another", "nothing says how that was"
        if self.package != other.package:
            packages = [one.package or "built in" for one in (self, other)]
            return "another", " and not ".join(packages)
        now, before = map(written_settings, (self.settings, other.settings))
        unlike = [n for n in {**now, **before} if now.get(n) != before.get(n)]
        counts = {n: (count(now.get(n)), count(before.get(n))) for n in unlike}
        if any(n not in MORE_IS_STRONGER or None in two for n, two in counts.items()):
            return "another", f"{self.settings} and not {other.settings}"
        fewer: list[str] = []
        more: list[str] = []
        for name, (ours, theirs) in counts.items():
            is_less = (ours or 0) < (theirs or 0)
            words = f"{name} is {ours} and not {theirs}"
            (fewer if is_less else more).append(words)
        if lacking := [name for name in other.clients if name not in self.clients]:
            fewer.append(f"not attacked: {', '.join(lacking)}")
        elif any(now < before for now, before in zip(self.n, other.n, strict=False)):
            fewer.append(
                f"it has {_counts(self.n)} candidates and not {_counts(other.n)}"
            )
        if fewer:
            return "weaker", "; ".join(fewer)
        return ("stronger", "; ".join(more)) if more else ("same", "")

    def __str__(self) -> str:
        models = f"{self.shadows} shadow models" if self.shadows else "no shadow models"
        clients = len(self.clients)
        whom = f", {clients} client{'s' * (clients != 1)}" if clients else ""
        return f"{models}{whom}"


def _counts(n: Iterable[int]) -> str:
    return " + ".join(map(str, n))


def made_in(audit: StoredAudit) -> dict[str, AttackStrength]:
    """Return the attacks on clients' models of an audit, the headline first."""
    return {
        name: AttackStrength(
            str(leak["settings"]),
            str(leak.get("package", "")),
            tuple(dict.fromkeys(audit.columns[name]["client"].tolist())),
            tuple(leak["auroc"]["n"]),
        )
        for name, leak in audit.contents["leaks"].items()
    }


def made_now(audit: Audit) -> dict[str, AttackStrength]:
    """Return the same of an audit that nobody stored."""
    return {
        name: AttackStrength(
            leak.settings,
            leak.package,
            tuple(client.client for client in leak.clients),
            leak.auroc.n,
        )
        for name, leak in audit.results.items()
    }


def that_options_choose(made: Made, scenario: str) -> dict[str, AttackStrength]:
    """Return attacks without those in a weaker adversary's place.

    These are made whenever its view shows other models: what a run shows decides, and
    no option.
    """
    weaker = [find_plan(name) for name in find_plan(scenario).dominates]
    placed = {
        attack_in_place(attack, plan.name) for plan in weaker for attack in plan.attacks
    }
    return {name: one for name, one in made.items() if name not in placed}


AS_STRICT: Mapping[str, Callable[[Any, Any], bool]] = {
    "scenario": lambda now, before: now == before or before in find_plan(now).dominates,
    "metrics": lambda now, before: {*now} >= {*before},
    "attacks": lambda now, before: {*now} >= {*before},
    "guarantees": operator.ge,
    "margin": operator.le,
    "utility_margin": operator.le,
    "alpha": operator.eq,  # larger passes sooner, smaller finds regressions later
    "max_auroc": lambda now, before: (
        before is None or (now is not None and now <= before)
    ),
    "min_utility": lambda now, before: (
        before is None or (now is not None and now >= before)
    ),
    "shadows": operator.ge,
    "clients": lambda now, before: now == "all" or (before != "all" and now >= before),
    "baseline": lambda now, before: before in (None, now),
}
"""Whether a setting of the gate, the first, asks for no less than another."""


def weaker_settings(
    now: GateSettings, before: GateSettings, headline: str
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting that asks for less than another's: its name, and both values.

    The headline is the attack that is asked where a setting names none.
    """
    ours, theirs = (_explicit(one, headline) for one in (now, before))
    for one in fields(GateSettings):
        name = one.name
        if not AS_STRICT[name](getattr(ours, name), getattr(theirs, name)):
            yield name, getattr(now, name), getattr(before, name)


def _explicit(settings: GateSettings, headline: str) -> GateSettings:
    shadows = FEWEST if settings.shadows is None else settings.shadows
    return replace(
        settings,
        attacks=settings.attacks or (headline,),
        shadows=shadows,
        clients=settings.clients or "all",
    )
