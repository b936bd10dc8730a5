"""The index: one row for each audit of several runs, with a link to its report."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privaudit.auditing.audit import Audit
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.storage import read_bytes, write_bytes
from privaudit.federated.runs.runs import Run
from privaudit.report.cards import counted
from privaudit.report.columns import audit_row, columns
from privaudit.report.page_template import MADE_BY, render
from privaudit.report.report_data import ReportData

INDEX = "index.html"
Titled = Sequence[tuple[str, Path]]


@dataclass(frozen=True)
class IndexEntry:
    """An audit, and where its report lies."""

    audit: Audit
    page: Path


def check_place(folder: Path) -> None:
    """Refuse to write over somebody else's page.

    Raises:
        ConfigError: There is an index that privaudit did not write.
    """
    try:
        there = read_bytes(folder / INDEX)
    except MissingFileError:
        return
    if MADE_BY.encode() not in there:
        raise ConfigError(
            f"The index of the reports goes to {folder / INDEX}, but a page that "
            "privaudit did not write is there. Move that page, or choose another folder."
        )


def write_index(
    folder: Path,
    entries: Sequence[IndexEntry],
    unaudited: Sequence[Run] = (),
    together: Titled = (),
    sweeps: Titled = (),
) -> Path:
    """Write index.html, and return it.

    The worst comes first, by their :attr:`Findings.rank`.

    Args:
        folder: Links are relative to it.
        entries: May be empty, if there are sweeps.
        unaudited: Runs that nobody attacked.
        together: Further pages on some of the runs, with their titles.
        sweeps: Pages of sweeps, with their titles.

    Raises:
        StorageError: The folder cannot be written.
    """
    data = ReportData.of([entry.audit for entry in entries])
    pages = {id(entry.audit): _relative(entry.page, folder) for entry in entries}
    page = render(
        "index.html.jinja",
        summary=audits_summary(data.audits),
        columns=columns(data, "index"),
        rows=[audit_row(one, pages[id(one.audit)]) for one in data.worst_first],
        unaudited=[(run.name, _why(run)) for run in unaudited],
        together=_linked(together, folder),
        sweeps=_linked(sweeps, folder),
    )
    write_bytes(folder / INDEX, page.encode())
    return folder / INDEX


def audits_summary(audits: Sequence[Audit]) -> str:
    """Say in a sentence how many audits leak; nothing if there are none."""
    kinds = Counter[str](audit.headline.verdict.kind for audit in audits)
    runs = len({audit.run.path for audit in audits})
    if not audits:
        return ""
    count = f"{len(audits)} audit{'s' * (len(audits) > 1)}"
    return f"Of {count} of {runs} run{'s' * (runs > 1)}, {counted(kinds)}."


def _why(run: Run) -> str:
    if not run.is_complete:
        done = run.header["progress"]["rounds"]
        return f"stopped after {done} of {run.config.rounds} rounds"
    return "never attacked"


def _linked(pages: Titled, folder: Path) -> list[tuple[str, str]]:
    return [(title, _relative(page, folder)) for title, page in pages]


def _relative(page: Path, folder: Path) -> str:
    """Return a link that works from a file, and after all was moved together."""
    return Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix()
