"""Attacks beside the headline, corrected for their number; and on the server's model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.default_attacks import ALPHAS as ORDERS
from privaudit.auditing.default_attacks import SHARES, SLICES, GridCell
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.core.formatting import p_value
from privaudit.report.wording import interval, point
from privaudit.statistics.comparisons import (
    holm,
    p_above_chance,
    pooled_paired_auroc_difference,
)
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
        audits: How many audits of the run p-values are corrected for.
        turned: Whether members have the lower scores.
    """

    leak: AttackResult
    p_value: float
    shown: int
    tried: int
    audits: int
    turned: bool

    @property
    def sentence(self) -> str:
        """Which attack shows a leak, and how surely."""
        auroc = self.leak.auroc
        members, others = auroc.n
        clients = len(self.leak.clients)
        which, corrected = "the other attack", ""
        if self.tried > 1:
            which = f"strongest of the {self.tried} other attacks"
            corrected = f", Holm-corrected over {self.tried}"
        if self.audits > 1:
            corrected += f", corrected for {self.audits} audits"
        return (
            f"{which}, {self.leak.attack} {point(auroc)} {interval(auroc)} on {clients} "
            f"client{'s' * (clients > 1)} (n = {members} + {others}); "
            f"{'below' if self.turned else 'above'} 0.5 at p "
            f"{p_value(self.p_value)}{corrected}"
            f"{': separates, with the sign turned' if self.turned else ''}."
        )


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
    leak, p = max(shown, key=lambda one: either_sign(one[0].auroc).value)
    turned, audits = leak.auroc.value < 0.5, audit.tried.different
    return OtherLeak(leak, p, len(shown), len(others), audits, turned)


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


def both_models(audit: Audit) -> tuple[AttackResult, AttackResult] | None:
    """Return the first attack that was made on the server's own model too.

    On the clients' models, and on that one: the headline, unless it trains shadows.
    """
    common = audit.part(SERVER_MODEL)
    name = next((name for name in audit.results if name in common), None)
    return None if name is None else (audit.results[name], common[name])


def gain_of_rebuilding(audit: Audit) -> Estimate | None:
    """Return an attack's AUROC on clients less that on the server's own model.

    Paired by record; None where the server's model was not attacked, or no client has
    both members and others.
    """
    found = both_models(audit)
    if found is None:
        return None
    groups = [
        (client.scores, server.scores, client.is_member)
        for client, server in zip(*(leak.clients for leak in found), strict=True)
    ]
    if not any(truth.any() and not truth.all() for *_, truth in groups):
        return None
    return pooled_paired_auroc_difference(groups).estimate


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
