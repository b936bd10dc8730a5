"""Strength of attacks and of the gate's settings; shortfalls: weaker than asked.

This is the only place that orders them. A setting of an attack that is not listed has
no known order: made otherwise, it is neither weaker nor stronger, but another attack.
An attack that is missing, weaker or another one, and a baseline of another version or
of another branch's code, leave the gate undecided. Settings of the change that ask for
less than the reference's are a regression: they are compared exactly, as epsilons are.
"""

import operator
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from privaudit.auditing.audit import Audit
from privaudit.auditing.named_attacks import (
    attack_in_place,
    count,
    named_attacks,
    shadows_of,
    written_settings,
)
from privaudit.auditing.scenario import OF_SCORES, find_plan
from privaudit.auditing.stored_audit import StoredAudit
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.models.interfaces import TaskKind

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
            str(result["settings"]),
            str(result.get("package", "")),
            tuple(dict.fromkeys(audit.columns[name]["client"].tolist())),
            tuple(result["auroc"]["n"]),
        )
        for name, result in audit.contents["attack_results"].items()
    }


def made_now(audit: Audit) -> dict[str, AttackStrength]:
    """Return the same of an audit that nobody stored."""
    return {
        name: AttackStrength(
            result.settings,
            result.package,
            tuple(client.client for client in result.clients),
            result.auroc.n,
        )
        for name, result in audit.results.items()
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


def _is_as_low(now: float | None, before: float | None) -> bool:
    return before is None or (now is not None and now <= before)


AS_STRICT: Mapping[str, Callable[[Any, Any], bool]] = {
    "scenario": lambda now, before: now == before or before in find_plan(now).dominates,
    "metrics": lambda now, before: {*now} >= {*before},
    "attacks": lambda now, before: {*now} >= {*before},
    "guarantees": operator.ge,
    "margin": operator.le,
    "utility_margin": operator.le,
    "alpha": operator.eq,  # larger passes sooner, smaller finds regressions later
    "max_auroc": _is_as_low,
    "max_tpr": _is_as_low,
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


Code = Literal[
    "missing attack",
    "weaker attack",
    "another attack",
    "another version",
    "another branch",
    "unsigned",
    "weaker setting",
    "unheld settings",
]
CODES: Mapping[Relation, Code] = {
    "weaker": "weaker attack",
    "another": "another attack",
}


@dataclass(frozen=True)
class Shortfall:
    """Something that was to be checked, and was not, or not so.

    Attributes:
        name: An attack, a setting, or "baseline".
        now: As it is, in a few words.
        setting: Name of the gate's setting that asks for it.
    """

    name: str
    code: Code
    now: str
    before: str
    setting: str
    sentence: str

    rule = "strength"

    @property
    def outcome(self) -> Literal["regression", "underpowered"]:
        """A setting is compared exactly; all else leaves the question open."""
        return "regression" if self.code == "weaker setting" else "underpowered"

    @property
    def title(self) -> str:
        """What was asked, in a few words that no other check of a gate has."""
        return f"{self.name}: {self.code}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "name": self.name,
            "about": "strength",
            "code": self.code,
            "setting": self.setting,
            "now": self.now,
            "before": self.before,
            "outcome": self.outcome,
            "sentence": self.sentence,
        }


def short_of_baseline(
    run: str, scenario: str, made: Made, demanded: Made
) -> Iterator[Shortfall]:
    """Yield each attack that a baseline demands, and that a run's audit is short of."""
    wanted = that_options_choose(demanded, scenario)
    shadows = max((one.shadows or 0 for one in wanted.values()), default=0)
    command = attack_command(run, scenario, wanted, shadows)
    again = f"Make the audit again: `{command}`."
    for name, before in wanted.items():
        if name not in made:
            yield _missing(name, f"the baseline was attacked by it ({before})", again)
            continue
        relation, why = made[name].than(before)
        if relation in CODES:
            kind = "weaker" if relation == "weaker" else "made otherwise"
            yield Shortfall(
                name, CODES[relation], str(made[name]), str(before), "attacks",
                f"Undecided: {name} was {kind} on {run} than on the baseline ({why}), so "
                f"that a pass would say nothing. {again}",
            )  # fmt: skip


def _missing(name: str, why: str, again: str) -> Shortfall:
    said = f"Undecided: {name} was not made, and {why}. {again}"
    return Shortfall(name, "missing attack", "none", "made", "attacks", said)


def short_of_settings(
    run: str,
    made: Made,
    settings: GateSettings,
    kind: TaskKind | None,
    *,
    by_default: bool,
) -> Iterator[Shortfall]:
    """Yield each attack that settings ask for, and that a run's audit is short of.

    Without ``attacks`` that is the first attack that the scenario names for such
    models: one with shadow models, unless ``shadows`` is 0.

    Args:
        run: Name of the run.
        made: The attacks of its audit.
        settings: Of the gate: attacks, shadows and clients are asked for there.
        kind: The task of its models, where an adversary could train shadow models of
            them; None where none could.
        by_default: Whether settings that are not set ask for something: where a
            baseline says how strong attacks are to be, they do not.
    """
    names = list(settings.attacks)
    if not names and by_default:
        names = [_usual(made, settings, kind)]
    if not names:  # those of the baseline, which need no more than settings say
        names = [name for name, one in made.items() if one.shadows is not None]
    usual = FEWEST if by_default else 0
    fewest = usual if settings.shadows is None else settings.shadows
    plan = find_plan(settings.scenario).attacks
    cheap = all(n in plan and not plan[n].trains_shadows for n in names)
    shadows = 0 if cheap else max(fewest, FEWEST)
    again = attack_command(run, settings.scenario, names, shadows)
    for name in names:
        if name not in made:
            _check_name(name, made, settings.scenario, run)
            yield _missing(
                name, "the settings ask for it, or the scenario does where they name none",
                f"Make the audit again: `{again}`. Or say in the settings what is to be "
                "enough: attacks = [...], or shadows = 0 for attacks without shadow "
                "models.",
            )  # fmt: skip
            continue
        found = made[name]
        if found.shadows is not None and found.shadows < fewest:
            yield _few(name, found, "shadows", f"{fewest} shadow models", again)
        asked = _clients(made, settings, by_default)
        if len(found.clients) < asked:
            yield _few(name, found, "clients", f"{asked} clients", again)


def _clients(made: Made, settings: GateSettings, by_default: bool) -> int:
    """Return how many clients are to be attacked, of those that any attack was made on."""
    most = len({client for one in made.values() for client in one.clients})
    if settings.clients is None:
        return most if by_default else 0
    return most if settings.clients == "all" else min(settings.clients, most)


def _few(
    name: str, found: AttackStrength, setting: str, asked: str, again: str
) -> Shortfall:
    return Shortfall(
        name, "weaker attack", str(found), asked, setting,
        f"Undecided: {name} was made with {found}, and {asked} are asked for. Make the "
        f"audit again: `{again}`; or set {setting} to what is to be enough.",
    )  # fmt: skip


def _usual(made: Made, settings: GateSettings, kind: TaskKind | None) -> str:
    """Return the attack that the scenario names first, of those that can be made."""
    headline = next(iter(made))
    if kind is None or settings.shadows == 0:
        return headline
    plan = find_plan(settings.scenario)
    for name, attack in plan.attacks.items():
        fits = attack.task in (kind, "either")
        if name in made or (attack.trains_shadows and fits):
            return name
    return headline


def _check_name(name: str, made: Made, scenario: str, run: str) -> None:
    """Refuse the name of an attack that nobody could make."""
    if name in find_plan(scenario).attacks or scenario == OF_SCORES.name:
        return
    try:
        named_attacks([name], 0)
    except (UnknownNameError, ConfigError):
        raise UnknownNameError(f"attack of {run}'s audit", name, made) from None


def attack_command(
    run: str, scenario: str, attacks: Iterable[str], shadows: int
) -> str:
    """Return the command that makes attacks on a run."""
    if scenario == OF_SCORES.name:
        return "privaudit scores FILE"
    own = find_plan(scenario).attacks
    named = [word for name in attacks if name not in own for word in ("--attack", name)]
    words = ["privaudit", "attack", run, "--scenario", scenario, "--shadows"]
    return shlex.join([*words, str(shadows), *named])


def unsigned(name: str) -> Shortfall:
    """Return that nobody vouches for numbers to compare with."""
    return Shortfall(
        "baseline", "unsigned", name, "signed", "baseline",
        f"Undecided: nobody signed {name}, so whoever changes the code could have "
        "changed it too. Compare with a file of `privaudit gate RUN --write-baseline`; "
        "or take it from where the change cannot write, and add --accept-unsigned.",
    )  # fmt: skip


def unheld(baseline: str) -> Shortfall:
    """Return that nobody but the change says which baseline is to be compared with."""
    return Shortfall(
        "baseline", "unheld settings", baseline, "named elsewhere", "baseline",
        f"Undecided: pyproject.toml alone names the baseline {baseline}, so whoever "
        f"changes the code could have chosen it. Add --baseline {baseline}; or give "
        "--settings-from with the target branch, whose pyproject.toml names it too.",
    )  # fmt: skip


def less_asked(
    now: GateSettings, before: GateSettings, headline: str, source: str
) -> Iterator[Shortfall]:
    """Yield each setting that asks for less than it did where the source has it."""
    for name, ours, theirs in weaker_settings(now, before, headline):
        is_now, was = _word(ours), _word(theirs)
        yield Shortfall(
            name, "weaker setting", is_now, was, name,
            f"Regression: the setting {name} is {is_now} here and {was} in {source}, so "
            f"that less is asked. Restore it; if it is meant, change it there first, or "
            "give it as an option of the command.",
        )  # fmt: skip


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "the default"
    return "not set" if value is None else str(value)
