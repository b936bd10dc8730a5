"""Every attack that was made, but for MaxRényi's grid, which has a table of its own."""

from dataclasses import dataclass

from privaudit.report.report_data import ReportData
from privaudit.report.tables.token_grid_table import outside_grid
from privaudit.report.wording import TableCell


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


def attack_rows(data: ReportData) -> list[AttackRow]:
    """Return the attacks of each run, in the scenario's order."""
    return [
        AttackRow(
            run=one.label,
            attack=leak.attack,
            is_headline=leak is one.audit.headline,
            clients=len(leak.clients),
            auroc=TableCell.of(leak.auroc),
            success=TableCell.of(leak.success),
            success_plain=TableCell.of(leak.success_plain),
            advantage=TableCell.of(leak.advantage, signed=True),
            threshold=leak.threshold,
        )
        for one in data.runs
        for leak in outside_grid(one.audit.results).values()
    ]
