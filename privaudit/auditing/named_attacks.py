"""Attacks by label: as they are asked for by name, and as an audit keeps them.

A label names an attack in an audit: the registered name, alone or with what was asked
for, such as "lira:mode=offline", or what a scenario says of it behind a space.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from math import inf
from string import ascii_lowercase
from typing import Any, Literal, get_args

from privaudit.auditing.attack import ATTACKS, Attack
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.auditing.shadow_budget import parse_budget
from privaudit.core.errors import (
    AttackError,
    ConfigError,
    PluginError,
    UnknownNameError,
    shown,
)
from privaudit.core.parameters import (
    MOST,
    build,
    field_names,
    parse_spec,
    refuse_incomplete,
)
from privaudit.core.registry import first_line
from privaudit.models.interfaces import AnyTask
from privaudit.runs.config import RunConfig

Attacks = Sequence[str] | Mapping[str, Attack]
_EXAMPLE = "lira:mode=offline"
# Labels and settings go where a run's files never do: they hold numbers and choices.
_LABEL = re.compile(r"[\w-]+(:\w+=[\w.+-]+(,\w+=[\w.+-]+)*)?", re.ASCII)
_LETTERS = frozenset(f"{ascii_lowercase}_-")
_CONSTANTS = {"None": None, "True": True, "False": False, "inf": inf}


def named_attacks(attacks: Attacks, shadows: int) -> dict[str, Attack]:
    """Return attacks by label.

    Args:
        attacks: NAME or NAME:key=value,key=value each; or attacks by label.
        shadows: Of each attack that trains shadow models and names no number; with
            0 it takes its own default.

    Raises:
        UnknownNameError: No attack has that name.
        ConfigError: A parameter is unknown or out of range, or no number or choice; or
            one text was given in place of a list.
        PluginError: The attack is another package's, and cannot be imported.
    """
    if isinstance(attacks, Mapping):
        return dict(attacks)
    if isinstance(attacks, str):  # whose letters would be names
        raise ConfigError(
            f"attacks = {shown(attacks)} was given, and a list is wanted: [{attacks!r}]."
        )
    return dict(_named(text, shadows) for text in attacks)


def _named(text: str, shadows: int) -> tuple[str, Attack]:
    name, parameters = parse_spec("--attack", text, _EXAMPLE)
    factory, what = ATTACKS.find(name), f"attack {name!r}"
    trained = {}
    if "shadows" in field_names(factory) and "shadows" not in parameters:
        trained = {"shadows": shadows or build(what, factory, parameters).shadows}  # type: ignore[attr-defined]
    attack = build(what, factory, {**parameters, **trained})
    _check_attack(what, attack)
    if not shadows:  # a label without them is the scenario's own attack
        parameters |= trained
    values = (f"{k}={'none' if v is None else v}" for k, v in parameters.items())
    label = f"{name}:{','.join(values)}" if parameters else name
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f"--attack {text!r} was given. A value is a number or a word: letters, "
            f"digits, and . _ + - among them, as in {_EXAMPLE}."
        )
    return label, attack


def _check_attack(what: str, attack: Any) -> None:
    advice = "Set them in its class, see CONTRIBUTING."
    refuse_incomplete(what, attack, Attack, advice)
    if attack.task not in get_args(AnyTask):
        raise AttackError(
            f"The {what} attacks models of the task {attack.task!r}. There are "
            f"{', '.join(get_args(AnyTask))}: set one of them."
        )
    if not is_dataclass(attack):
        raise AttackError(
            f"The {what} does not say its parameters: its class is no dataclass. "
            "Decorate it with @dataclass(frozen=True) of pydantic.dataclasses."
        )


def check_played(named: Mapping[str, Attack], plan: Scenario) -> None:
    """Refuse attacks that were asked for, and that the run's models cannot be given."""
    for label in named:
        if label not in plan.attacks:
            raise AttackError(
                f"The attack {label!r} was requested, and the run's models do not give "
                f"what it needs. Attacks on these models: {', '.join(plan.attacks)}."
            )


def restore_attack(label: str, settings: str) -> Attack:
    """Return an attack by its label and its parameters, as ``repr`` writes them.

    Raises:
        UnknownNameError: No attack of that name is installed.
        PluginError: It is another package's, and cannot be imported.
        ConfigError: It does not write its parameters so.
    """
    name = _name(label)
    factory = ATTACKS.find(name)
    if known := _read_settings(settings):
        attack = build(f"attack {name!r}", factory, known[1])
        if repr(attack) == settings:
            return attack
    raise ConfigError(
        f"The attack {label!r} is not written so: {settings[:120]}. Make the audit "
        "again with `privaudit attack`."
    )


def is_written(name: str, settings: str) -> bool:
    """Say whether settings are those of an attack's class, all numbers and choices."""
    known = _read_settings(settings)
    return known is not None and known[0].lower() == name.replace("-", "")


def _read_settings(settings: str) -> tuple[str, dict[str, Any]] | None:
    """Return an attack's class and fields; None unless all are numbers and choices."""
    written = written_settings(settings)
    made = written.pop("")
    try:
        fields = {field: _read_value(text) for field, text in written.items()}
    except ValueError:
        return None
    return (made, fields) if settings.startswith(f"{made}(") else None


def _read_value(text: str) -> Any:
    """Return the number or choice that ``repr`` wrote of a field."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text.startswith("'"):
        word = text[1:].removesuffix("'")
        if word and _LETTERS.issuperset(word):
            return word
    number = int(text) if text.removeprefix("-").isdecimal() else float(text)
    if abs(number) < inf:
        return number
    raise ValueError(text)


def written_settings(settings: str | None) -> dict[str, str]:
    """Return what ``repr`` wrote of an attack, by name; its class stands under "".

    A text of another form stands there as it is.

    Example:
        >>> written_settings("Rmia(shadows=16, mode='online')")
        {'': 'Rmia', 'shadows': '16', 'mode': "'online'"}
    """
    name, bracket, inside = (settings or "").partition("(")
    pairs = [part.partition("=") for part in inside.removesuffix(")").split(", ")]
    is_written = bracket and inside.endswith(")") and name.isidentifier()
    if not is_written or not all(sign for name, sign, _ in pairs if name):
        return {"": settings or ""}
    return {"": name, **{name: value for name, _, value in pairs if name}}


def count(value: str | None) -> int | None:
    """Return a whole number of at most nine digits; None if it is something else."""
    is_one = value is not None and value.isascii() and value.isdecimal()
    return int(value) if is_one and value and len(value) <= 9 else None


def shadows_of(settings: str | None) -> int | None:
    """Return how many shadow models an attack trains a client; None if none."""
    return count(written_settings(settings).get("shadows"))


def description(label: str) -> str:
    """Return the first line of an attack's documentation; empty if it is not here."""
    try:
        return first_line(ATTACKS.find(_name(label)))
    except (UnknownNameError, PluginError):
        return ""


def attack_in_place(attack: str, weaker: str) -> str:
    """Return the label of an attack in a weaker adversary's place.

    Example:
        >>> attack_in_place("loss-threshold", "server-aggregate")
        'loss-threshold as server-aggregate'
    """
    return f"{attack} as {weaker}"


def package_of(label: str) -> str:
    """Return whose plugin an attack is, as "others 1.2"; empty for a built-in one."""
    return ATTACKS.package_of(_name(label))


def _name(label: str) -> str:
    return re.split("[: ]", label)[0]


def refuse_all_members(config: RunConfig, what: str = "The run is trained") -> None:
    """Refuse a run without non-members, finished or planned."""
    if config.members == "all":
        neither, change = "", ""
        if config.public_share == 0:
            neither = ", nor reference records for thresholds and shadow models"
            change = " and a public_share above 0"
        raise AttackError(
            f"{what} on all candidates, so there are no non-members to tell members "
            f'from{neither}. Use members = "coin" (--members coin){change}.'
        )


def check_arguments(
    scenario: str | Scenario,
    clients: int | Literal["all"],
    shadows: int | None,
    budget: str | None,
    seed: int,
    attacks: Attacks,
) -> None:
    """Refuse what no audit could do, before data and models are loaded.

    Raises:
        ConfigError: A number is out of range.
        UnknownNameError: No scenario, or no attack, has that name.
    """
    for name, value, fewest in (
        ("seed", seed, 0),
        ("shadows", shadows, 0),
        ("clients", clients, 1),
    ):
        if (name, value) in (("shadows", None), ("clients", "all")):
            continue
        most = 2**64 - 1 if name == "seed" else MOST
        if type(value) is not int or not fewest <= value <= most:
            raise ConfigError(
                f"An audit with {name} = {shown(value)} was requested. Use a whole "
                f"number from {fewest} to {most}"
                f"{', or all' if name == 'clients' else ''}."
            )
    if budget is not None:
        parse_budget(budget)
        if shadows is not None:
            raise ConfigError(
                f"shadows = {shadows} and budget = {budget} were requested: a budget is "
                "what the number of shadow models follows from. Give one of the two."
            )
    find_scenario(scenario, 5 if shadows is None else shadows)
    named_attacks(attacks, shadows or 0)
