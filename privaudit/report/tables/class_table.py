"""Leak per class as a page shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.report.report_data import ReportData
from privaudit.report.tables.leak_by_class import MOST_CLASSES, class_sentence
from privaudit.report.wording import AurocRow, TableCell


@dataclass(frozen=True)
class ClassTable:
    """The classes of one run."""

    run: str
    sentence: str
    rows: Sequence[AurocRow]


def class_tables(data: ReportData) -> list[ClassTable]:
    """Return the tables, in the order of the runs; none where no run has classes."""
    if not data.have_classes:
        return []
    return [
        ClassTable(
            one.label,
            class_sentence(one.classes),
            [
                AurocRow(
                    c.name, c.n, TableCell.of(c.auroc) if c.auroc else None, c.standing
                )
                for c in one.classes
            ],
        )
        for one in data.runs
    ]


def drawn_sentence(data: ReportData) -> str:
    """Say which classes have no row in the picture; nothing if all have."""
    count = len({leak.name for one in data.runs for leak in one.classes})
    if count <= MOST_CLASSES:
        return ""
    return (
        f"The figure shows the {MOST_CLASSES} classes with the most records of "
        f"{count}; the table has all."
    )
