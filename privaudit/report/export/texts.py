"""Texts that may leave: names that are registered, and what code writes of fixed words.

Nothing fits that a user, a record or a path could have put there.
"""

import re
from functools import cache
from typing import Any, get_args

from privaudit.auditing.named_attacks import (
    description,
    named_attacks,
    restore_attack,
)
from privaudit.auditing.parts.inversion import MEASURES
from privaudit.auditing.parts.one_run import BY_SECRET, KINDS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.errors import ConfigError, PluginError
from privaudit.federated.runs.tasks import EXACT
from privaudit.privacy.accountant import Accountant
from privaudit.privacy.certificate import CertifiedView
from privaudit.privacy.events import NoiseAt, Release
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.allow_list import (
    OMITTED,
    AllowList,
    either,
    phrases,
    sentence,
    text,
)
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.captions.token_f1 import F1

SHA = text(r"[0-9a-f]{64}")
_VERSION = r"[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?(\+[a-z]+[0-9.]*)?"
VERSION = text(_VERSION)
PACKAGE = text(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,63}} {_VERSION}")
_SLUG = r"[a-z][a-z0-9]{0,15}([-_][a-z0-9]{1,15}){0,5}"
SLUG = text(_SLUG)
_SETTING = rf"{_SLUG}=(-?[0-9]{{1,9}}(\.[0-9]{{1,9}})?|{_SLUG})"
PARTITIONS = text(
    _SLUG, rf"flwr:[A-Za-z]{{1,40}}Partitioner(:{_SETTING}(,{_SETTING}){{0,9}})?"
)
MODELS = text(r"tiny-[a-z]+", r"open_clip:[A-Za-z0-9_.@-]+")
LONGEST = 300  # letters of an attack's own words
CLAIM, MECHANISM, WHY = phrases("claim"), phrases("mechanism"), phrases("certificate")
METHOD, BOUND_METHOD = phrases("method"), phrases("bound")
REASON, MEANING = phrases("reason"), phrases("round")
ACCOUNTANT = sentence("", "by definition", *get_args(Accountant))
RELEASE, NOISE_AT = (text(*get_args(names)) for names in (Release, NoiseAt))
VIEW = text(*get_args(CertifiedView), SCORES)
CANARIES = sentence(*map(re.escape, KINDS.values()))
READ = "|".join(MEASURES)  # of records that were read out of uploads
METRIC = text("accuracy", *map(re.escape, (EXACT, F1, *METRICS)))


@cache
def _planned(names: tuple[str, ...]) -> frozenset[str]:
    """Return what the scenarios of these names call their attacks."""
    plans = [SCENARIOS.find(name)() for name in names]
    return frozenset(label for plan in plans for label in plan.attacks)


def is_label(label: str) -> bool:
    """Say whether code names an attack so: nothing else can be written in it."""
    attack, in_place, weaker = label.partition(" as ")
    if in_place and weaker not in SCENARIOS.names():
        return False
    if attack == SCORES:
        return True
    if attack in _planned(tuple(SCENARIOS.usable())):
        return may_leave(attack)
    try:
        return attack in named_attacks([attack], shadows=5)
    except (ConfigError, PluginError):
        return False


def may_leave(words: str) -> bool:
    """Say whether words that an attack's code says are short, and name no place.

    Example:
        >>> may_leave("median of public records"), may_leave("see /home/ann")
        (True, False)
    """
    is_text = 0 < len(words) <= LONGEST and words.isprintable()
    return is_text and not re.search(r"\\|://|(^|[\s\"'(\[])[~/.]", words)


def attack_words(label: str, settings: str) -> dict[str, str]:
    """Return what an attack's code says of it: what its file says goes nowhere.

    Returns:
        Its parameters, how its guesses are made, and what it is in a line; without
        what cannot be said again, or is no text that may leave.
    """
    said = {"description": description(label)}
    try:
        attack = restore_attack(label, settings)
        said |= {"settings": repr(attack), "threshold": attack.threshold}
    except (ConfigError, PluginError):
        pass
    return {key: words for key, words in said.items() if may_leave(words)}


def attack_label(sieve: AllowList, value: Any, place: str) -> Any:
    """Let an attack's name through."""
    if isinstance(value, str) and is_label(value):
        return value
    sieve.odd.append(place)
    return OMITTED


SCORED_BY = either(text("movement against its gradient", BY_SECRET), attack_label)
