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
from privaudit.auditing.parts.one_run import KINDS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.errors import ConfigError, PluginError
from privaudit.federated.runs.tasks import EXACT
from privaudit.privacy.accountant import Accountant
from privaudit.privacy.certificate import CertifiedView
from privaudit.privacy.events import NoiseAt, Release
from privaudit.report.export.allow_list import (
    OMITTED,
    AllowList,
    either,
    sentence,
    text,
)
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.captions.token_f1 import F1

SHA = text(r"[0-9a-f]{64}")
VERSION = text(r"[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?(\+[a-z]+[0-9.]*)?")
SLUG = text(r"[a-z][a-z0-9]{0,15}([-_][a-z0-9]{1,15}){0,5}")
MODELS = text(r"tiny-[a-z]+", r"open_clip:[A-Za-z0-9_.@-]+")
FOLDER_MODELS = (
    "surrogate",
    "llava",
    "language",
    "encoder",
    "vit",
    "clip",
    "decoder",
    "seq2seq",
    "blip",
)
LONGEST = 300  # letters of an attack's own words
_NUMBER = r"[0-9.e+-]+"
_FORMULA = r"sqrt\(T ln\(1/delta\)\) / epsilon \* C / B"
CLAIM = sentence(
    r"no privacy mechanism|no record is used",
    r"noise by an accountant \(opacus PRV or the exact Gaussian; see the "
    r"certificate\), for a record of (the released model(; with each client's own "
    r"noise on what it sends also against the server)?|what a client sends, not of "
    r"what it releases)",
    rf"the published formula, {_FORMULA}",
    r"noise by an accountant \(see the certificate\), for one client, whose records "
    r"are (all replaced|all left out)",
    r"epsilon as published; how noise follows from it was not: here sqrt\(2 ln\(1\.25/"
    r"delta\)\) / epsilon, for one upload",
    r"epsilon and delta as published; how noise follows from them was not: here "
    rf"{_FORMULA} on the prompt that is sent",
)
_STEPS = (
    r"at most \d+ steps of a Gaussian mechanism of effective noise multiplier "
    rf"{_NUMBER}, (Poisson-sampled at rate {_NUMBER}|without sampling|of {_NUMBER} of "
    r"all clients, drawn without replacement)"
)
_DRAWN = (
    r"noise drawn in floating point, whose low bits can tell neighbouring values "
    r"apart, which no accountant counts|discrete Gaussian noise on a grid, \d+ steps "
    r"to a standard deviation or more, which is accounted for"
)
MECHANISM = sentence(
    rf"no mechanism counts|nothing is released|{_STEPS}(; {_STEPS})*(; ({_DRAWN}))?",
)
WHY = sentence(
    r"No record has any influence on what this view holds\.",
    r"No mechanism was applied\.",
    r"Nothing that this view sees of round \d+ has a mechanism\.",
    r"What this view sees of round \d+ carries no noise\.",
    r"The server adds the noise itself, so it sees what the noise hides\.",
    r"The (global|local|upload|choice) release of round \d+ has no noise\.",
    r"Nothing bounds what the noise of the (global|local|upload|choice) release of "
    r"round \d+ hides: it was not clipped\.",
    r"Every upload carries its own client's noise\.",
    r"Every upload carries its client's share of the noise only\.",
    r"The sum that the server sees carries (every client's noise|all shares of the "
    r"noise)\.",
    r"Broadcasts carry (the server's noise, which no peer knows|the noise of all "
    r"clients but the peer itself|all shares of the noise but the peer's own)\.",
    r"The global part carries (the server's noise, the local its client's|all shares "
    r"of the noise)\.",
    r"Every part of the prompt carries its client's noise\.",
)
_FREEDOM = r"t with [0-9.e+]+ degrees of freedom"
_LEFT_OUT = r"; \d+ left out, without members or non-members"
METHOD = sentence(
    rf"mean of (paired differences of )?replicates(, {_FREEDOM})?",
    r"mean over clients, linearised over test records",
    r"macro F1 averaged over models, linearised over test records",
    r"(share of right guesses|proportion), Clopper-Pearson",
    r"share of right guesses averaged over \d+ classes, Korn-Graubard",
    r"TPR - FPR, Newcombe's hybrid score",
    r"TPR at FPR 0\.\d+, order statistics and Clopper-Pearson",
    r"AUROC, DeLong or Wilcoxon on the logit scale(; \d+ of \d+ scores tie)?",
    r"difference of proportions, Newcombe's hybrid score",
    r"paired difference of AUROCs, DeLong with Satterthwaite's t"
    rf"(, averaged over \d+ clients by pairs)?({_LEFT_OUT})?",
    rf"AUROC averaged over \d+ clients by pairs({_LEFT_OUT})?; (equal in all; )?"
    r"(stratified DeLong or Wilcoxon on the logit scale|"
    rf"jackknife over clients, {_FREEDOM})",
    r"(mean of \d+ models, )?bootstrap over (images|records) \(BCa, \d+ replicates\)",
)
BOUND_METHOD = sentence(
    r"one-run (binomial|f-DP), \d+ \+ \d+ guesses",
    r"Gaussian mechanism assumed, one-run f-DP, \d+ \+ \d+ guesses",
)
REASON = sentence(r"|needs \d+ [a-z]+(-[a-z]+)?, has \d+")
MEANING = sentence(
    "this round's uploads alone", "clients as rebuilt from the uploads so far"
)
ACCOUNTANT = sentence("", "by definition", *get_args(Accountant))
VIEW, RELEASE, NOISE_AT = (
    text(*get_args(names)) for names in (CertifiedView, Release, NoiseAt)
)
CANARIES = sentence(*map(re.escape, KINDS.values()))
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


SCORED_BY = either(text("movement against its gradient"), attack_label)
