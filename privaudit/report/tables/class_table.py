"""Leak per class as a page shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.auditing.audit import Audit
from privaudit.report.figures.row_figures import MOST_CLASSES
from privaudit.report.tables.leak_by_class import (
    ClassLeak,
    class_sentence,
    leak_by_class,
)
from privaudit.report.tables.table import AurocRow, TableCell


@dataclass(frozen=True)
class ClassTable:
    """The classes of one run."""

    run: str
    sentence: str
    rows: Sequence[AurocRow]


def classes_of(
    audits: Sequence[Audit], names: Sequence[Sequence[str]] | None = None
) -> list[list[ClassLeak]]:
    """Return the headline attack's leak per class, of each audit.

    Args:
        audits: Whose data sets name their classes.
        names: Of each audit's classes, where the data set is not to be loaded.
    """
    if names is None:
        names = [audit.run.class_names for audit in audits]
    pairs = zip(audits, names, strict=True)
    return [
        leak_by_class(audit.headline, class_names, audit.run.sampling)
        for audit, class_names in pairs
    ]


def class_tables(
    classes: Sequence[Sequence[ClassLeak]], labels: Sequence[str]
) -> list[ClassTable]:
    """Return the tables, in the order of the runs."""
    return [
        ClassTable(
            label,
            class_sentence(leaks),
            [AurocRow(one.name, one.n, _cell(one), one.standing) for one in leaks],
        )
        for label, leaks in zip(labels, classes, strict=True)
    ]


def _cell(one: ClassLeak) -> TableCell | None:
    return None if one.auroc is None else TableCell.of(one.auroc)


def drawn_sentence(classes: Sequence[Sequence[ClassLeak]]) -> str:
    """Say which classes have no row in the picture; nothing if all have."""
    count = len({one.name for leaks in classes for one in leaks})
    if count <= MOST_CLASSES:
        return ""
    return (
        f"The figure shows the {MOST_CLASSES} classes with the most records of "
        f"{count}; the table has all."
    )
