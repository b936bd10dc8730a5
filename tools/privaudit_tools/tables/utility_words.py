"""What a utility table's numbers are called, and what is said of their units."""

from collections.abc import Mapping, Sequence

from privaudit_tools.tables.metrics import (
    CAPTIONS,
    ELSEWHERE,
    MEGABYTES,
    Metric,
    attack_of,
    chance,
    domain_of,
    is_cider,
    number_of,
)
from privaudit_tools.tables.plan import ONLY_COLUMN, TablePlan

PER_CENT, HUNDREDTHS = "per cent", "hundredths"
TITLES: dict[Metric, str] = {
    "local": "Accuracy on a client's own classes",
    "neighbour": "Accuracy on the other clients' classes",
    "mix": "Accuracy on tests with the client's own mixture of classes",
    "all": "Accuracy on all test records",
}
_SHORT: dict[Metric, str] = {
    "local": "Accuracy, own classes",
    "neighbour": "Accuracy, others' classes",
    "mix": "Accuracy, own mixture",
    "all": "Accuracy, all test records",
}
_OWNERS = {"server": "of the server's model", "clients": "of the clients' models"}
_RELEASED, _QUERIED = "released models", "queried models"
_SEEN = {
    "prompt-release": _RELEASED,
    "black-box": _QUERIED,
    "black-box-labels": _QUERIED,
}
_AT_AXES = {"server": ", server's model"}


def title(plan: TablePlan, metric: Metric) -> str:
    """Return what stands above a metric's own table."""
    first, _, rest = metric.partition(" ")
    if first == ELSEWHERE and plan.elsewhere:
        return f"{rest} of the server's model on {plan.elsewhere.dataset}"
    if metric in CAPTIONS:
        return f"{rest} {_OWNERS[first]}"
    seen = _SEEN.get(plan.scenario, "reconstructed models")
    victims = {"server": " on the server's model", "client": f" on {seen}"}
    if attacked := _attacked(metric, victims):
        return attacked
    if (of_domain := domain_of(metric)) is not None:
        return f"{TITLES[of_domain[0]]}, clients of {of_domain[1]}"
    return TITLES.get(metric, metric.capitalize())


def heads(labels: Sequence[str], metric: Metric) -> list[str]:
    """Return what stands above columns: a plan without columns calls its one accuracy."""
    if tuple(labels) != (ONLY_COLUMN,) or metric in TITLES or domain_of(metric):
        return list(labels)
    return [_number(metric) if attack_of(metric) is not None else metric]


def _number(metric: Metric) -> str:
    """Return which number of an attack a metric is."""
    return number_of(metric).heading or number_of(metric).title


def label(plan: TablePlan, metric: Metric) -> str:
    """Return what stands at a metric's axis: where it is measured, and its unit."""
    words = _SHORT.get(metric) or _attacked(metric, _AT_AXES) or title(plan, metric)
    for panel in plan.panels:
        if metric in panel.metrics:
            words = ": ".join(filter(None, (panel.label, panel.head(metric))))
    behind = {PER_CENT: ", %", HUNDREDTHS: ", hundredths"}
    return words + behind.get(unit(metric), "")


def _attacked(metric: Metric, victims: Mapping[str, str]) -> str:
    """Return an attack's number and whose model it attacks; empty of other metrics."""
    attack, whose = attack_of(metric), metric.partition(" ")[0]
    if attack is None:
        return ""
    return f"{_number(metric)} of {attack}{victims.get(whose, '')}"


def rounds_of(metrics: Sequence[Metric], accuracy: str) -> str:
    """Return which rounds numbers are of, where accuracy is of those rounds.

    Only a run's last model is attacked, and measured by domain and elsewhere; bytes are
    a mean over all rounds.

    Example:
        >>> rounds_of(["client rmia"], "mean of the last 10 rounds")
        'last round'
        >>> rounds_of(["client rmia", "local"], "mean of the last 10 rounds")
        'mean of the last 10 rounds'
    """
    if all(metric == MEGABYTES for metric in metrics):
        return "mean of all rounds"
    return "last round" if all(map(_is_afterwards, metrics)) else accuracy


def _is_afterwards(metric: Metric) -> bool:
    away = metric.startswith(ELSEWHERE) or domain_of(metric) is not None
    return away or attack_of(metric) is not None


def unit(metric: Metric) -> str:
    """Return what a printed number counts."""
    if metric == MEGABYTES:
        return MEGABYTES
    return HUNDREDTHS if is_cider(metric) else PER_CENT


def about_units(plan: TablePlan) -> list[str]:
    """Return a sentence for each kind of number that is no share of right answers."""
    sentences = []
    if any(is_cider(metric) for metric in plan.measured):
        sentences.append(
            "CIDEr-D is coco-caption's CIDEr times 100, as in papers: from 0 to 1,000."
        )
    if plan.results:
        told = "; of members told at 1 % false alarms it is 1" * any(
            chance(metric) == 1 for metric in plan.measured
        )
        sentences.append(
            "Attacks: AUROC in per cent, members against non-members of the same "
            "distribution, or success, right guesses averaged over classes; 50 is "
            f"random guessing{told}. Means over the attacked clients; the server's model "
            f"is attacked on each client's records too (scenario {plan.scenario}, "
            f"{_shadows(plan)})."
        )
    if MEGABYTES in plan.measured:
        sentences.append(
            "Megabytes (10⁶ bytes), up plus down: sum over the clients of a round, "
            "mean over rounds."
        )
    if plan.elsewhere:
        sentences.append(
            f"On {plan.elsewhere.dataset}, which no client trains on, the final server "
            "model is evaluated, on the same records in all runs."
        )
    return sentences


def _shadows(plan: TablePlan) -> str:
    if not plan.shadows:
        return "no shadow models"
    whose = (
        "all clients" if plan.attacked == "all" else f"{plan.attacked} of the clients"
    )
    return f"{plan.shadows} shadow models for each of {whose}"
