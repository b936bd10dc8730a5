"""An audit as a row of a table: what leaks, what was promised, utility, other attacks."""

from typing import Any

from privaudit.auditing.audit import Audit
from privaudit.core import formatting
from privaudit.report import wording
from privaudit.report.decision.badges import (
    leak_badge,
    leak_rank,
    promise_badge,
    promise_rank,
)
from privaudit.report.tables.other_attacks import either_sign, strongest_attack
from privaudit.report.tables.table import TableCell


def audit_row(audit: Audit, label: str, link: str) -> dict[str, Any]:
    """Return what ``audit_cells.html.jinja`` shows of an audit.

    Args:
        audit: Of one run, under one scenario.
        label: The run's.
        link: To its report.
    """
    strongest, p = strongest_attack(audit)
    by_coin = audit.run.sampling == "coin"  # else no p-value is of membership
    utility = audit.utility
    return {
        "label": label,
        "run": audit.run.name,
        "link": link,
        "trainer": audit.run.config.trainer,
        "data": audit.run.config.dataset,
        "scenario": audit.scenario.name,
        "leak": leak_badge(audit),
        "leak_rank": leak_rank(audit),
        "attack": audit.headline.attack,
        "auroc": TableCell.of(audit.auroc),
        "auroc_drawn": audit.auroc,
        "promise": promise_badge(audit),
        "promise_rank": promise_rank(audit),
        "claimed": formatting.epsilon(audit.claimed_epsilon),
        "certified": wording.certified(audit),
        "metric": utility.metric if utility else "",
        "use": TableCell.of(utility.local) if utility else TableCell("-"),
        "use_drawn": utility.local if utility else None,
        "strongest": strongest.attack,
        "strongest_auroc": TableCell.of(either_sign(strongest.auroc)),
        "strongest_turned": strongest.auroc.value < 0.5,
        "tried": len(audit.results),
        "p": formatting.p_value(p) if by_coin else "",
    }
