"""The index, a row for each audit of several runs, and reports written anew.

Of what is stored: nothing is trained or attacked again. All is read and checked before the
first page is written. A damaged audit has no page; the others are written, and the error
says which were left out.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privaudit.auditing.audit import Audit, recount
from privaudit.auditing.scenario import SCENARIOS, find_plan
from privaudit.auditing.stored_audit import (
    StoredAudit,
    read_audit,
    restore_audit,
    stored_scenarios,
)
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditError,
    TranscriptError,
)
from privaudit.core.storage import read_bytes, write_bytes
from privaudit.evaluation.tradeoff.result import SWEEP, read_sweep
from privaudit.report.columns import audit_row, columns
from privaudit.report.first_screen import counted
from privaudit.report.page import write_report
from privaudit.report.page_template import MADE_BY, render
from privaudit.report.report_data import ReportData
from privaudit.report.sweep import write_sweep
from privaudit.runs.own_files import refuse_link
from privaudit.runs.run import Run, find_place, latest_runs, load_run, runs_folder

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

    The worst comes first, by their :attr:`Findings.rank`. Pages on several runs and of
    sweeps come with their titles.
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


MOST_TOGETHER = 24  # runs on one page, side by side


@dataclass
class _Subjects:
    """What was asked about.

    Attributes:
        optional: Places of runs that need not have been audited: nobody named them.
        folders: Folders that were given for what is in them.
    """

    runs: dict[Path, Run] = field(default_factory=dict)
    optional: set[Path] = field(default_factory=set)
    sweeps: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def add(self, run: Run, *, optional: bool) -> None:
        """Take a run, once."""
        path = run.path.resolve()
        self.runs.setdefault(path, run)
        if optional:
            self.optional.add(path)


def rewrite_reports(
    names: Sequence[str] = (),
    *,
    scenario: str | None = None,
    folder: Path | None = None,
    show_records: bool = False,
) -> Path:
    """Write the reports of runs and sweeps, and return the page to begin with.

    That is the report, if there is one only, else an index: in the folder of runs that
    was given or that they lie in, or in the run, if one was attacked in several ways.

    Args:
        names: Runs by name or path, folders of runs, folders of sweeps; by default the
            runs last trained.
        scenario: One alone; by default all under which a run was attacked.
        folder: Where runs are kept.
        show_records: Show the most exposed records.

    Raises:
        UnknownNameError: No scenario has that name.
        MissingFileError: There is no such run, or none of them was audited.
        TranscriptError: A run, an audit or a sweep is damaged.
        StorageError: A folder cannot be written.
    """
    subjects = _subjects(names, scenario, folder)
    stored, audits, damaged = _restored(subjects, scenario)
    if not stored and not subjects.sweeps:
        raise damaged[0] if damaged else _nothing(subjects, scenario)
    sweeps = {path: read_sweep(path) for path in subjects.sweeps}
    home = _home(subjects, folder)
    if len(audits) + len(sweeps) > 1:
        check_place(home)
    entries = _write_reports(stored, audits, show_records)
    pages = [write_sweep(tradeoff, path) for path, tradeoff in sweeps.items()]
    if len(entries) + len(pages) == 1:
        page = [*(entry.page for entry in entries), *pages][0]
    else:
        audited = {one.run.path.resolve() for one in stored}
        rest = [run for path, run in subjects.runs.items() if path not in audited]
        together = _write_together(stored, audits, home)
        titles = [
            f"{path.name}: {len(tradeoff.cells)} cells, {len(tradeoff.points)} runs"
            for path, tradeoff in sweeps.items()
        ]
        titled = list(zip(titles, pages, strict=True))
        page = write_index(home, entries, rest, together, titled)
    if damaged:
        raise TranscriptError(
            f"{page} is written, without {len(damaged)} of "
            f"{len(stored) + len(damaged)} audits. The first of them: {damaged[0]}"
        )
    return page


def stored_audits(
    names: Sequence[str], scenario: str | None = None, folder: Path | None = None
) -> list[Audit]:
    """Return audits of runs, as :func:`rewrite_reports` finds them.

    Raises:
        UnknownNameError: No scenario has that name.
        MissingFileError: There is no such run, or none of them was audited.
        TranscriptError: A run or an audit is damaged.
    """
    subjects = _subjects(names, scenario, folder)
    _, audits, damaged = _restored(subjects, scenario)
    if damaged or not audits:
        raise damaged[0] if damaged else _nothing(subjects, scenario)
    return audits


def _subjects(
    names: Sequence[str], scenario: str | None, folder: Path | None
) -> _Subjects:
    if scenario and scenario not in SCENARIOS.in_labs():  # whose audits anyone reads
        find_plan(scenario)
    subjects = _Subjects()
    for run in latest_runs(folder) if not names else []:
        subjects.add(run, optional=False)
    for name in names:
        path = find_place(name, folder)
        if (path / SWEEP).is_file():
            subjects.sweeps.append(path)
        elif (path / "run.json").is_file() or not _held(path):
            subjects.add(load_run(name, folder=folder), optional=False)
        else:
            subjects.folders.append(path)
            for part in _held(path):
                if (part / SWEEP).is_file():
                    subjects.sweeps.append(part)
                else:
                    subjects.add(load_run(part), optional=True)
    subjects.sweeps = list(dict.fromkeys(subjects.sweeps))
    return subjects


def _held(folder: Path) -> list[Path]:
    """Return the runs and sweeps in a folder."""
    if not folder.is_dir():
        return []
    parts = sorted(part for part in folder.iterdir() if not part.name.startswith("."))
    return [
        part
        for part in parts
        if (part / "run.json").is_file() or (part / SWEEP).is_file()
    ]


def _restored(
    subjects: _Subjects, scenario: str | None
) -> tuple[list[StoredAudit], list[Audit], list[PrivauditError]]:
    """Return every audit that is asked for, and why others cannot be restored."""
    stored: list[StoredAudit] = []
    audits: list[Audit] = []
    damaged: list[PrivauditError] = []
    for run, name in _asked_for(subjects, scenario):
        try:
            one = read_audit(run, name)
            audits.append(recount(restore_audit(one)))
        except PrivauditError as error:
            damaged.append(error)
        else:
            stored.append(one)
    return stored, audits, damaged


def _asked_for(subjects: _Subjects, scenario: str | None) -> list[tuple[Run, str]]:
    """Return the runs with the scenarios whose audits are asked for."""
    requested = []
    for path, run in subjects.runs.items():
        played = stored_scenarios(run)
        wanted = played if scenario is None else [scenario]
        if path in subjects.optional:
            wanted = [name for name in wanted if name in played]
        elif not wanted:
            raise MissingFileError(
                f"{run.name} has no audit to report. Make one with `privaudit attack "
                f"{run.name}`."
            )
        requested += [(run, name) for name in wanted]
    return requested


def _nothing(subjects: _Subjects, scenario: str | None) -> MissingFileError:
    under = f" under {scenario}" if scenario else ""
    folders = ", ".join(map(str, subjects.folders))
    return MissingFileError(
        f"Reports were asked for, and none of the {len(subjects.runs)} runs in "
        f"{folders} was attacked{under}. Make audits with `privaudit attack`."
    )


def _home(subjects: _Subjects, folder: Path | None) -> Path:
    """Return where an index belongs."""
    runs = list(subjects.runs.values())
    if len(subjects.folders) == 1:
        return subjects.folders[0]
    if len(runs) == 1 and not subjects.sweeps:
        return runs[0].path / "audits"
    parents = {run.path.resolve().parent for run in runs}
    return runs[0].path.parent if len(parents) == 1 else runs_folder(folder)


def _write_reports(
    stored: Sequence[StoredAudit], audits: Sequence[Audit], show_records: bool
) -> list[IndexEntry]:
    entries = []
    for one, audit in zip(stored, audits, strict=True):
        refuse_link(one.run.path / "audits")
        refuse_link(one.run.path / "audits" / one.scenario)
        page = one.run.path / "audits" / one.scenario / "report.html"
        names = [one.class_names]
        write_report([audit], page, show_records=show_records, class_names=names)
        entries.append(IndexEntry(audit, page))
    return entries


def _write_together(
    stored: Sequence[StoredAudit], audits: Sequence[Audit], home: Path
) -> list[tuple[str, Path]]:
    """Write a page for each scenario that some runs share; of many none is legible."""
    written = []
    for scenario in dict.fromkeys(one.scenario for one in stored):
        numbers = [n for n, one in enumerate(stored) if one.scenario == scenario]
        if not 2 <= len(numbers) <= MOST_TOGETHER:
            continue
        page = home / f"report-{scenario}.html"
        names = [stored[number].class_names for number in numbers]
        write_report([audits[number] for number in numbers], page, class_names=names)
        written.append((f"{scenario}: {len(numbers)} runs side by side", page))
    return written
