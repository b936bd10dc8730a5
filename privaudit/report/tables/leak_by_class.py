"""Records of which classes leak? AUROC by class, corrected for their number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from privaudit.auditing.attack_result import AttackResult, ClientScores
from privaudit.core.formatting import p_value
from privaudit.report.tables.other_attacks import ALPHA
from privaudit.report.wording import interval, point
from privaudit.statistics.comparisons import holm, p_above_chance
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling

FEWEST = 10  # members, and as many others: with fewer an interval says nothing
MOST_CLASSES = 24  # in a picture; the table holds all


@dataclass(frozen=True)
class ClassLeak:
    """What an attack learned of one class's records.

    Attributes:
        n: Its members and its other candidates, of all attacked clients.
        auroc: Within clients and averaged by pairs; None where there are too few.
        p_value: Of an AUROC of 0.5, by Holm's method over all classes with enough.
        sampling: How members were chosen: without a coin each, no class is said to leak.
    """

    name: str
    n: tuple[int, int]
    auroc: Estimate | None
    p_value: float = 1.0
    sampling: Sampling = "coin"

    @property
    def results(self) -> bool:
        """Whether the AUROC lies above 0.5, corrected for the number of classes."""
        by_coin = self.sampling == "coin"
        return by_coin and self.auroc is not None and self.p_value <= ALPHA

    @property
    def standing(self) -> str:
        """Say what may be said of the class."""
        if self.auroc is None:
            members, others = self.n
            return f"unresolved: needs {FEWEST} + {FEWEST}, has {members} + {others}"
        if self.sampling != "coin":
            return "no verdict"
        finding = "above 0.5" if self.results else "not distinguishable from 0.5"
        return f"{finding}, p {p_value(self.p_value)}"


def leak_by_class(
    leak: AttackResult, names: Sequence[str] = (), sampling: Sampling = "coin"
) -> list[ClassLeak]:
    """Return each class that has a candidate, in the order of the classes.

    Scores are compared within a client and a class only, so that an attack which knows
    the class and nothing else gets 0.5.

    Args:
        leak: Of one attack.
        names: Of the classes; a class without one is called by its number.
        sampling: How members were chosen.
    """
    labels = sorted({int(label) for c in leak.clients for label in c.labels})
    class_leaks = [_of_class(leak.clients, label, names) for label in labels]
    resolved = [one for one in class_leaks if one.auroc is not None]
    adjusted = holm([p_above_chance(one.auroc) for one in resolved if one.auroc])
    corrected = {one.name: float(p) for one, p in zip(resolved, adjusted, strict=True)}
    return [
        replace(one, p_value=corrected.get(one.name, 1.0), sampling=sampling)
        for one in class_leaks
    ]


def _of_class(
    clients: Sequence[ClientScores], label: int, names: Sequence[str]
) -> ClassLeak:
    groups = []
    for client in clients:
        in_class = client.labels == label
        members = client.scores[in_class & client.is_member]
        groups.append((members, client.scores[in_class & ~client.is_member]))
    n = tuple(int(np.sum([len(group[side]) for group in groups])) for side in (0, 1))
    usable = [group for group in groups if all(map(len, group))]
    counted = [sum(len(group[side]) for group in usable) for side in (0, 1)]
    name = names[label] if label < len(names) else f"class {label}"
    enough = min(counted) >= FEWEST
    return ClassLeak(name, (n[0], n[1]), pooled_auroc(usable) if enough else None)


def class_sentence(classes: Sequence[ClassLeak]) -> str:
    """Say which classes stand out, and over how many that is corrected."""
    resolved = [one for one in classes if one.auroc is not None]
    few = len(classes) - len(resolved)
    rest = (
        f" {few} of {len(classes)} classes have too few records for an estimate."
        if few
        else ""
    )
    if not resolved:
        return f"No class has {FEWEST} members and {FEWEST} non-members.{rest}"
    if resolved[0].sampling != "coin":
        return f"No verdict on any class. {UNKNOWN_SAMPLING}{rest}"
    over = f"Holm-corrected over {len(resolved)} class{'es' * (len(resolved) > 1)}"
    leaking = sorted((one for one in resolved if one.results), key=lambda one: one.name)
    if not leaking:
        return f"No class is above 0.5, {over}.{rest}"
    named = ", ".join(_class_text(one) for one in leaking[:5])
    more = f" and {len(leaking) - 5} more" if len(leaking) > 5 else ""
    return f"Above 0.5, {over}: {named}{more}.{rest}"


def _class_text(one: ClassLeak) -> str:
    assert one.auroc is not None
    return f"{one.name} {point(one.auroc)} {interval(one.auroc)}"
