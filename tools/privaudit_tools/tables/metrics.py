"""What a table can print: names of numbers, where they stand, and their units.

A number belongs to the clients' personal models ("local", "mix", "clients BLEU-1"), to
the server's own model ("server BLEU-1"; on another data set, "elsewhere BLEU-1"), to
what is sent ("megabytes per round"), to the clients of one domain ("mix on clipart",
"local on real"), or to an attack: "client NAME" on reconstructed models,
"server NAME" on the server's model, its AUROC, or with " success" behind it its share of
right guesses, averaged over classes; likewise with the code of any other metric of
attacks (:mod:`privaudit.evaluation.metric`). An attack's bare NAME is for tables whose rows say
whose model is attacked.
"""

import math
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any, Literal

from privaudit.evaluation import metric as evaluated
from privaudit.evaluation.metric import metrics_of
from privaudit.evaluation.metrics.auroc import AUROC
from privaudit.evaluation.metrics.success import SUCCESS
from privaudit.evaluation.metrics.tpr import TPR
from privaudit.runs.tasks import EXACT
from privaudit.statistics.captions.answers import F1
from privaudit.statistics.captions.scores import METRICS as CAPTION_METRICS

Metric = str
AttackNumber = evaluated.Metric[Any]
Whose = Literal["server", "client"]

ACCURACIES = ("local", "neighbour", "mix", "all")
MEGABYTES = "megabytes per round"
ELSEWHERE = "elsewhere"
CIDER = "CIDEr-D"
CAPTIONS = tuple(
    f"{who} {name}"
    for who in ("server", "clients", ELSEWHERE)
    for name in (*CAPTION_METRICS, F1, EXACT)
)
PLAIN = (*ACCURACIES, MEGABYTES, *CAPTIONS)
_IN_DOMAINS = ("local", "mix")
_VICTIMS: tuple[Whose, ...] = ("server", "client")


def domain_of(metric: Metric) -> tuple[str, str] | None:
    """Return an accuracy's name and the domain whose clients it is of; None of others.

    Example:
        >>> domain_of("mix on real photos"), domain_of("mix")
        (('mix', 'real photos'), None)
    """
    name, on, domain = metric.partition(" on ")
    return (name, domain) if on and domain and name in _IN_DOMAINS else None


def attack_of(metric: Metric) -> str | None:
    """Return the attack whose AUROC or success a metric is; None of anything else.

    Example:
        >>> attack_of("server token-loss"), attack_of("token-loss")
        ('token-loss', 'token-loss')
        >>> attack_of("client shadow success")
        'shadow'
        >>> attack_of("server BLEU-1") is None
        True
    """
    if metric in PLAIN or domain_of(metric):
        return None
    name = _without_number(metric)
    first, _, rest = name.partition(" ")
    return rest if first in _VICTIMS else name


def number_of(metric: Metric) -> AttackNumber:
    """Return which number of an attack a metric is: its AUROC where it names none."""
    code = metric.rpartition(" ")[2]
    named = {number.code: number for number in metrics_of("leak")}
    return named.get(code, AUROC)


def chance(metric: Metric) -> float | None:
    """Return what guessing gives an attack, as printed; None of what is no attack.

    Example:
        >>> chance("client rmia"), chance("client rmia tpr"), chance("local")
        (50.0, 1.0, None)
    """
    if attack_of(metric) is None:
        return None
    return {AUROC: 50.0, SUCCESS: 50.0, TPR: 1.0}.get(number_of(metric))


def named(whose: str, attack: str, number: AttackNumber) -> Metric:
    """Return what an attack's number is called: "client rmia success"."""
    return f"{whose} {attack}" + f" {number.code}" * (number is not AUROC)


def _without_number(metric: Metric) -> str:
    number = number_of(metric)
    return metric if number is AUROC else metric.removesuffix(f" {number.code}")


def lacks_owner(metric: Metric) -> bool:
    """Say whether a metric is an attack's bare name."""
    return attack_of(metric) == _without_number(metric)


def scale(metric: Metric) -> float:
    """Return what a number is multiplied by where it is printed.

    Shares and AUROCs are printed in per cent, and CIDEr-D a hundredfold as in papers,
    which makes it a number from 0 to 1,000; megabytes stay.
    """
    return 1.0 if metric == MEGABYTES else 100.0


def largest(metric: Metric) -> float:
    """Return the largest number that can be printed."""
    if metric == MEGABYTES:
        return math.inf
    return 1000.0 if is_cider(metric) else 100.0


def is_cider(metric: Metric) -> bool:
    """Say whether a metric is CIDEr-D of somebody's captions."""
    return metric in CAPTIONS and metric.partition(" ")[2] == CIDER


def check_metrics(
    metrics: Collection[Metric], scenario: str, attacks: Collection[str]
) -> None:
    """Refuse a metric that no run could have.

    Args:
        metrics: As a plan names them.
        scenario: Whose attacks they may be of.
        attacks: Of that scenario.

    Raises:
        ValueError: One is unknown; the text says which ones there are.
    """
    for metric in metrics:
        attack = attack_of(metric)
        if attack is None or attack in attacks:
            continue
        close = get_close_matches(metric, list(_names(attacks)), n=1)
        hint = f"did you mean {close[0]!r}" if close else _known(scenario, attacks)
        raise ValueError(f"{metric!r} is no metric; {hint}")


def _known(scenario: str, attacks: Collection[str]) -> str:
    texts = ", ".join((*CAPTION_METRICS, F1, EXACT))
    return (
        f"there are {', '.join((*ACCURACIES, MEGABYTES))}; "
        f"{' or '.join(_IN_DOMAINS)} with 'on' and a domain; server, clients or "
        f"{ELSEWHERE} with {texts}; and server or client with an attack of "
        f"{scenario}, with {' or '.join(_behind())} behind it for another number than "
        f"its AUROC: {', '.join(attacks)}"
    )


def _names(attacks: Collection[str]) -> Iterator[str]:
    yield from PLAIN
    for attack in attacks:
        yield attack
        for whose in _VICTIMS:
            for number in metrics_of("leak"):
                yield named(whose, attack, number)


def _behind() -> list[str]:
    return [number.code for number in metrics_of("leak") if number is not AUROC]
