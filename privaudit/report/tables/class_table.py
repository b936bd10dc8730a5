"""Leak per class as a page shows it."""

from privaudit.report.report_data import ReportData
from privaudit.report.tables.leak_by_class import MOST_CLASSES
from privaudit.report.wording import NOTHING, TableCell, TableRows


def class_rows(data: ReportData) -> TableRows:
    """Return each run's classes; no row where no run has several."""
    rows: TableRows = [
        (
            one.label,
            leak.name,
            f"{leak.n[0]} + {leak.n[1]}",
            TableCell.of(leak.auroc) if leak.auroc else NOTHING,
            leak.standing,
        )
        for one in data.runs
        for leak in one.classes
    ]
    return rows if data.have_classes else []


def drawn_sentence(data: ReportData) -> str:
    """Say which classes have no row in the picture; nothing if all have."""
    count = len({leak.name for one in data.runs for leak in one.classes})
    if count <= MOST_CLASSES:
        return ""
    return (
        f"The figure shows the {MOST_CLASSES} classes with the most records of "
        f"{count}; the table has all."
    )
