"""Every attack that was made, but for MaxRényi's grid, which has a table of its own."""

from dataclasses import replace

from markupsafe import Markup

from privaudit.report.report_data import ReportData
from privaudit.report.tables.token_grid_table import outside_grid
from privaudit.report.wording import TableCell, TableRows

_NAMED = Markup("<code>{}</code><i>named beforehand</i>")


def attack_rows(data: ReportData) -> TableRows:
    """Return the attacks of each run, in the scenario's order."""
    rows: TableRows = []
    for one in data.runs:
        for found in outside_grid(one.audit.results).values():
            is_headline = found is one.audit.headline
            auroc = TableCell.of(found.auroc)
            row = (
                one.label,
                (_NAMED if is_headline else Markup("<code>{}</code>")).format(
                    found.attack
                ),
                str(len(found.clients)),
                replace(auroc, note=f"n = {auroc.counts}"),
                TableCell.of(found.success),
                TableCell.of(found.success_plain),
                TableCell.of(found.advantage, signed=True),
                found.threshold,
            )
            rows.append(row)
    return rows
