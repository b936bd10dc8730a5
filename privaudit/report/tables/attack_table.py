"""Every attack that was made, but for MaxRényi's grid, which has a table of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.auditing.audit import Audit
from privaudit.report.tables.table import Cell
from privaudit.report.tables.token_grid_table import outside_grid


@dataclass(frozen=True)
class AttackRow:
    """One attack on one run."""

    run: str
    attack: str
    is_headline: bool
    clients: int
    auroc: Cell
    new_clients: Cell
    success: Cell
    success_plain: Cell
    advantage: Cell
    threshold: str


def attack_rows(audits: Sequence[Audit], labels: Sequence[str]) -> list[AttackRow]:
    """Return the attacks of each run, in the scenario's order."""
    return [
        AttackRow(
            run=label,
            attack=leak.attack,
            is_headline=leak is audit.headline,
            clients=len(leak.clients),
            auroc=Cell.of(leak.auroc),
            new_clients=Cell.of(leak.auroc_new_clients),
            success=Cell.of(leak.success),
            success_plain=Cell.of(leak.success_plain),
            advantage=Cell.of(leak.advantage, signed=True),
            threshold=leak.threshold,
        )
        for label, audit in zip(labels, audits, strict=True)
        for leak in outside_grid(audit.leaks).values()
    ]
