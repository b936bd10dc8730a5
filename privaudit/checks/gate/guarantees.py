"""Guarantees: the claimed and proved epsilons of a run beside its baseline's, exactly.

An epsilon follows from settings, not from a sample, so there is no margin and no test:
a rise is a rise. Whoever means to promise less writes a new baseline, or says so in the
settings, where a reviewer sees it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from privaudit.core.errors import ConfigError

SETTING = "guarantees"
CLAIMED = "claimed epsilon"
_CERTIFIED, _DECLARED = "certified epsilon", "declared epsilon"
_ROUNDING = 1e-9  # relative: an accountant's last digits on another processor


@dataclass(frozen=True)
class Stated:
    """An epsilon that a run claims, or that is proved in one view.

    Attributes:
        epsilon: At least 0, finite; None where nothing is claimed or proved.
        delta: In [0, 1).
        unit: What is protected: "record" or "client".
        adjacency: Which data sets count as neighbours.
        randomness: What the noise follows from, "system" or "seed", which makes it
            repeatable and not private; None where nothing is said.
    """

    epsilon: float | None
    delta: float
    unit: str
    adjacency: str
    randomness: str | None = None

    def __post_init__(self) -> None:
        randomness = "" if self.randomness is None else self.randomness
        texts = (self.unit, self.adjacency, randomness)
        numbers = (0 if self.epsilon is None else self.epsilon, self.delta)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"a guarantee is about {texts}")
        if not all(type(n) in (int, float) for n in numbers):
            raise ValueError(f"a guarantee's numbers are {numbers}")
        if not (0 <= numbers[0] < math.inf and 0 <= self.delta < 1):
            raise ValueError(f"no guarantee is at epsilon and delta {numbers}")

    def __str__(self) -> str:
        if self.epsilon is None:
            return "none"
        return (
            f"{self.epsilon:.10g} at delta {self.delta:g} "
            f"({self.adjacency}, per {self.unit})"
        )

    @property
    def short(self) -> str:
        """Epsilon alone, for tables."""
        return "none" if self.epsilon is None else f"{self.epsilon:.4g}"


NONE_STATED = {CLAIMED: Stated(None, 0.0, "record", "add/remove-one")}
"""What a card states that leaves certificates out, as membership enters them."""


@dataclass(frozen=True)
class GuaranteeCheck:
    """A stated epsilon beside the baseline's.

    Attributes:
        name: "claimed epsilon", "certified epsilon (VIEW)" or, where nothing here
            applied the mechanisms, "declared epsilon (VIEW)".
        outcome: "pass": at least as strong, with every number in it. "regression":
            weaker, gone, or of a kind that cannot be compared.
    """

    name: str
    now: Stated
    before: Stated
    outcome: Literal["pass", "regression"]
    sentence: str

    setting = SETTING
    rule = "guarantee"

    @property
    def title(self) -> str:
        """What was asked, in a few words that no other check of a gate has."""
        return f"{self.name}: guarantee"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "name": self.name,
            "about": "guarantee",
            "setting": self.setting,
            "now": asdict(self.now),
            "before": asdict(self.before),
            "outcome": self.outcome,
            "sentence": self.sentence,
        }


def stated(
    privacy: Mapping[str, Any], randomness: str | None = None
) -> dict[str, Stated]:
    """Return what a run's privacy.json states, by the name of its check.

    A claim says nothing about unit and adjacency: they are those of the mechanisms,
    which all certificates of a run share.

    Args:
        privacy: "claimed", and "certified" by view or for a single view.
        randomness: The run's own, where certificates do not say it.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: It is no such content.
    """
    certified = privacy["certified"]
    if "epsilon" in certified:  # of an audit.json, which knows its own view only
        certified = {certified["view"]: certified}
    by_view = {view: _stated(entry, randomness) for view, entry in certified.items()}
    kinds = {(one.unit, one.adjacency) for one in by_view.values()}
    if len(kinds) != 1:
        raise ValueError(f"certificates are about {sorted(kinds)}")
    unit, adjacency = kinds.pop()
    claim = {"unit": unit, "adjacency": adjacency, **privacy["claimed"]}
    names = {f"{_CERTIFIED} ({view})": one for view, one in by_view.items()}
    declared = {
        f"{_DECLARED} ({view})": _stated({**entry, "epsilon": word}, randomness)
        for view, entry in certified.items()
        if (word := entry.get("declared")) is not None
    }
    return {CLAIMED: _stated(claim, None), **names, **declared}


def _stated(entry: Mapping[str, Any], randomness: str | None) -> Stated:
    epsilon = entry["epsilon"]
    return Stated(
        None if epsilon == "none" else epsilon,
        entry["delta"],
        entry.get("unit", "record"),
        entry.get("adjacency", "add/remove-one"),
        entry.get("randomness", randomness),
    )


def compare_guarantees(
    now: Mapping[str, Stated], before: Mapping[str, Stated]
) -> Iterator[GuaranteeCheck]:
    """Yield a check for each number that the baseline states.

    Where it states none, nothing can have been lost. What was certified must stay so:
    a declared epsilon is none. What was declared may be declared or certified.

    Raises:
        ConfigError: The baseline states nothing at all, not even that it states none.
    """
    if not before:
        raise ConfigError(
            "The baseline lacks the claimed and certified epsilons, so a weaker "
            "guarantee would go unnoticed. Write it again, or set guarantees = false."
        )
    for name, old in before.items():
        if old.epsilon is None:
            continue
        gone = Stated(None, old.delta, old.unit, old.adjacency)
        found = now.get(name, gone)
        if name.startswith(_DECLARED) and name not in now:
            found = now.get(name.replace(_DECLARED, _CERTIFIED), gone)
        check = _compared(name, found, old)
        word = now.get(name.replace(_CERTIFIED, _DECLARED))
        if found.epsilon is None and name.startswith(_CERTIFIED) and word is not None:
            said = f"{check.sentence} {word} is declared, and nothing here applied it."
            check = replace(check, sentence=said)
        yield check


def _compared(name: str, now: Stated, before: Stated) -> GuaranteeCheck:
    why = why_weaker(now, before)
    change = f"{name} was {before} and is {now}"
    if why:
        return GuaranteeCheck(
            name, now, before, "regression", f"Regression: {change}: {why}."
        )
    return GuaranteeCheck(name, now, before, "pass", f"Pass: {change}.")


def why_weaker(now: Stated, before: Stated) -> str:
    """Say why a guarantee is weaker, or not comparable; nothing if it is neither.

    (epsilon, delta)-DP holds for every larger epsilon and delta too, so a guarantee is
    as strong where neither number is larger. Who may replace all of a client's records
    may also add, remove or change one: that covers records of either adjacency.

    Example:
        >>> old = Stated(8.0, 1e-5, "record", "add/remove-one")
        >>> why_weaker(Stated(8.5, 1e-5, "record", "add/remove-one"), old)
        'it rose'
    """
    assert before.epsilon is not None
    if now.epsilon is None:
        return "there is none any more"
    if now.epsilon == 0 and now.delta <= before.delta:
        return ""  # nothing depends on anybody's records
    if before.randomness == "system" and now.randomness != "system":
        return "its noise follows from the seed now: repeatable, not private"
    if not _covers(now, before):
        return (
            f"the two cannot be compared, as it protects one {now.unit} "
            f"({now.adjacency}) in place of one {before.unit} ({before.adjacency})"
        )
    rose = now.epsilon > before.epsilon * (1 + _ROUNDING)
    if now.delta > before.delta * (1 + _ROUNDING):
        return f"delta rose from {before.delta:.10g} to {now.delta:.10g}" + (
            "" if rose else ", so that the two epsilons cannot be compared"
        )
    return "it rose" if rose else ""


def _covers(now: Stated, before: Stated) -> bool:
    same = (now.unit, now.adjacency) == (before.unit, before.adjacency)
    replaced = (now.unit, now.adjacency) == ("client", "replace-one")
    return same or (replaced and before.unit == "record")
