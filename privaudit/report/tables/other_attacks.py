"""What the attacks show that the verdict is not about, corrected for their number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.default_attacks import ALPHAS as ORDERS
from privaudit.auditing.default_attacks import SHARES, SLICES, GridCell
from privaudit.core.formatting import p_value
from privaudit.report.wording import interval, point
from privaudit.statistics.comparisons import holm, p_above_chance
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import sign_turned

ALPHA = 0.05


@dataclass(frozen=True)
class OtherLeak:
    """The strongest of the other attacks that show a leak.

    Attributes:
        leak: What it found. It was picked, so its AUROC looks larger than it is.
        p_value: Corrected by Holm's method over all other attacks, and for the number
            of audits of the run.
        shown: How many of the others show a leak, so corrected.
        tried: How many others there are.
        turned: Whether members have the lower scores.
    """

    leak: AttackResult
    p_value: float
    shown: int
    tried: int
    turned: bool = False


def strongest_other(audit: Audit) -> OtherLeak | None:
    """Return the other attack with the largest AUROC of those that show a leak.

    Attacks but the headline are tested together, so that where none can tell anything,
    at most one audit in twenty says that any of them does: p-values are two-sided, and
    scores that tell members with the sign turned are counted. None if none shows a leak.
    """
    if audit.run.sampling != "coin":  # no leak is shown, by whatever attack
        return None
    others = list(audit.results.values())[1:]
    shown = [(leak, p) for leak, p in _tested(audit, others) if p <= ALPHA]
    if not shown:
        return None
    leak, p_value = max(shown, key=lambda one: either_sign(one[0].auroc).value)
    turned = leak.auroc.value < 0.5
    return OtherLeak(leak, p_value, len(shown), len(others), turned)


def strongest_attack(audit: Audit) -> tuple[AttackResult, float]:
    """Return the attack that separates best, with either sign, and its p-value.

    The headline was named beforehand and is a test of its own; the others are corrected
    together, as in :func:`strongest_other`. One without an AUROC comes last.
    """
    headline, *others = audit.results.values()
    tested = [*_tested(audit, [headline]), *_tested(audit, others)]
    return max(tested, key=lambda one: separation(one[0].auroc))


def either_sign(auroc: Estimate) -> Estimate:
    """Return the AUROC of the scores, or of the turned ones if that is larger."""
    return max(auroc, sign_turned(auroc), key=lambda one: one.value)


def separation(auroc: Estimate) -> float:
    """Return how far scores separate with either sign, in [0.5, 1]; -1 if unknown."""
    return -1.0 if math.isnan(auroc.value) else either_sign(auroc).value


def _tested(
    audit: Audit, leaks: Sequence[AttackResult]
) -> list[tuple[AttackResult, float]]:
    """Return attacks that are tested together, with two-sided p-values by Holm."""
    p_values = [p_above_chance(either_sign(leak.auroc)) for leak in leaks]
    adjusted = holm(p_values, audit.tried.different)
    return [(leak, float(p)) for leak, p in zip(leaks, adjusted, strict=True)]


def others_sentence(audit: Audit) -> str:
    """Say which other attack shows a leak, and how surely; nothing if none does."""
    leading = strongest_other(audit)
    if leading is None:
        return ""
    auroc = leading.leak.auroc
    members, others = auroc.n
    clients = len(leading.leak.clients)
    which, corrected = "the other attack", ""
    if leading.tried > 1:
        which = f"strongest of the {leading.tried} other attacks"
        corrected = f", Holm-corrected over {leading.tried}"
    if audit.tried.different > 1:
        corrected += f", corrected for {audit.tried.different} audits"
    return (
        f"{which}, {leading.leak.attack} {point(auroc)} {interval(auroc)} on {clients} "
        f"client{'s' * (clients > 1)} (n = {members} + {others}); "
        f"{'below' if leading.turned else 'above'} 0.5 at p "
        f"{p_value(leading.p_value)}{corrected}"
        f"{': separates, with the sign turned' if leading.turned else ''}."
    )


def same_columns(audit: Audit) -> list[str]:
    """Say which columns of MaxRényi's grid are one measurement, each slice's.

    Of n positions K % are one until n is 200 / K: then K = 0 takes the same one, and
    scores every candidate alike.
    """
    sentences = []
    for part in SLICES:
        for share in SHARES[1:]:
            pairs = [
                (GridCell(part, share, alpha), GridCell(part, SHARES[0], alpha))
                for alpha in ORDERS
            ]
            if all(_scores_alike(audit, one, other) for one, other in pairs):
                sentences.append(
                    f"in the slice {part}, {share} % scores every candidate as "
                    f"{SHARES[0]} % does: of so few positions both take one. These "
                    "columns are one measurement, not two."
                )
    return sentences


def _scores_alike(audit: Audit, one: GridCell, other: GridCell) -> bool:
    both = [audit.results.get(cell.attack) for cell in (one, other)]
    return all(both) and all(
        np.array_equal(a.scores, b.scores)
        for a, b in zip(*(leak.clients for leak in both if leak), strict=True)
    )
