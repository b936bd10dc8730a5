"""Every attack that was made, but for MaxRényi's grid, which has a table of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.auditing.audit import Audit
from privaudit.report.tables.table import TableCell
from privaudit.report.tables.token_grid_table import outside_grid


@dataclass(frozen=True)
class AttackRow:
    """One attack on one run."""

    run: str
    attack: str
    is_headline: bool
    clients: int
    auroc: TableCell
    success: TableCell
    success_plain: TableCell
    advantage: TableCell
    threshold: str


def attack_rows(audits: Sequence[Audit], labels: Sequence[str]) -> list[AttackRow]:
    """Return the attacks of each run, in the scenario's order."""
    return [
        AttackRow(
            run=label,
            attack=leak.attack,
            is_headline=leak is audit.headline,
            clients=len(leak.clients),
            auroc=TableCell.of(leak.auroc),
            success=TableCell.of(leak.success),
            success_plain=TableCell.of(leak.success_plain),
            advantage=TableCell.of(leak.advantage, signed=True),
            threshold=leak.threshold,
        )
        for label, audit in zip(labels, audits, strict=True)
        for leak in outside_grid(audit.results).values()
    ]
