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
from privaudit.report.decision.badges import audit_rank
from privaudit.report.decision.rows import audit_row
from privaudit.report.labels import run_labels
from privaudit.report.page_template import MADE_BY, render

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

    The worst comes first, as :func:`audit_rank` says.

    Args:
        folder: Links are relative to it.
        entries: May be empty, if there are sweeps.
        unaudited: Runs that nobody attacked.
        together: Further pages on some of the runs, with their titles.
        sweeps: Pages of sweeps, with their titles.

    Raises:
        StorageError: The folder cannot be written.
    """
    labels = labels_by_run([one.audit for one in entries])
    ordered = sorted(entries, key=lambda one: audit_rank(one.audit))
    page = render(
        "index.html.jinja",
        summary=audits_summary([one.audit for one in entries]),
        rows=[
            audit_row(
                one.audit, labels[one.audit.run.path], _relative(one.page, folder)
            )
            for one in ordered
        ],
        unaudited=[(run.name, _why(run)) for run in unaudited],
        together=_linked(together, folder),
        sweeps=_linked(sweeps, folder),
    )
    write_bytes(folder / INDEX, page.encode())
    return folder / INDEX


def labels_by_run(audits: Sequence[Audit]) -> dict[Path, str]:
    """Return each run's label, which is the same in all its audits."""
    runs = {audit.run.path: audit for audit in audits}
    return dict(zip(runs, run_labels(list(runs.values())), strict=True))


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
