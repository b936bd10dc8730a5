"""The runs of a folder as they are now: read when asked for, again when they change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any

from privaudit.auditing.audit import Audit
from privaudit.auditing.storage.load import AUDIT, SCORES, read_audit, stored_scenarios
from privaudit.auditing.storage.restore import restore_audit
from privaudit.cli.status import read_status
from privaudit.core.arrays import DAMAGE
from privaudit.core.errors import MissingFileError, PrivauditError, one_line, shown
from privaudit.evaluation.tradeoff.stored_sweep import SWEEP, read_sweep
from privaudit.federated.runs.folder.own_files import HEADER
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.report.columns import audit_row
from privaudit.report.decision.badges import Findings
from privaudit.report.galleries.sweep import render_sweep
from privaudit.report.page import render_report

_MOST_PAGES = 32  # that are kept: drawing one takes a second
BROKEN = (PrivauditError, *DAMAGE)
"""What reading foreign files may raise."""


@dataclass(frozen=True)
class ServedAudit:
    """An audit that can be shown, or why it cannot.

    Attributes:
        run: The run's name.
        scenario: Under which it was attacked.
        audit: None where its files are damaged.
        class_names: By class index, so that no data set is loaded for them.
        error: Why there is none.
        stamp: Of the files that it was read from: another one where they changed.
    """

    run: str
    scenario: str
    audit: Audit | None = None
    class_names: tuple[str, ...] = ()
    error: str = ""
    stamp: tuple[Any, ...] = ()


class ServedRuns:
    """What a folder of runs holds; nothing is written, and no code of a run is called.

    Args:
        folder: It is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._lock = RLock()  # requests come in threads, and pictures share settings
        self._kept: dict[Any, tuple[Any, Any]] = {}

    def status(self) -> dict[str, Any]:
        """Return runs and sweeps as `privaudit status --json` shows them."""
        return read_status(self.folder)

    def load(self, name: str) -> Run:
        """Return a run that lies in the folder.

        Raises:
            MissingFileError: None has that name: no name is taken for a path.
            PrivauditError: It is damaged, or signed by a key that is not trusted.
        """
        return load_run(self._place(name, HEADER))

    def _place(self, name: str, file: str) -> Path:
        for path in self.folder.glob(f"*/{file}"):
            if path.parent.name == name:
                return path.parent
        raise MissingFileError(f"There is no {shown(name)} in {self.folder}.")

    def audits_of(self, run: Run) -> Iterator[ServedAudit]:
        """Yield a run's audits, the damaged ones too; none while it is trained."""
        for scenario in stored_scenarios(run) if run.is_complete else ():
            yield self.audit(run.name, scenario)

    def audit(self, name: str, scenario: str) -> ServedAudit:
        """Return a run's audit; it is read again only if a file of it has changed.

        Raises:
            MissingFileError: There is none.
        """
        run = self.load(name)
        if scenario not in stored_scenarios(run):
            raise MissingFileError(f"{name} has no audit {shown(scenario)}.")
        stamp = self._stamp(name, scenario)
        return self._keeping(
            ("audit", name, scenario),
            stamp,
            lambda: replace(_read_served(run, scenario), stamp=stamp),
        )

    def audits(self) -> list[ServedAudit]:
        """Return all audits that can be shown."""
        found = []
        for name in self.status()["runs"]:
            try:
                found += [one for one in self.audits_of(self.load(name)) if one.audit]
            except BROKEN:
                continue  # has a row of its own among the runs
        return found

    def report(self, picked: Sequence[tuple[str, str]]) -> str:
        """Return the report on audits of one scenario, made anew without records.

        Raises:
            PrivauditError: An audit is missing or damaged.
        """
        served = [self.audit(*one) for one in picked]
        for one in served:
            if one.audit is None:
                raise MissingFileError(one.error)
        stamps = [one.stamp for one in served]

        def drawn() -> str:
            audits = [one.audit for one in served if one.audit]
            return render_report(
                audits, class_names=[one.class_names for one in served]
            )

        return self._keeping(("report", *picked), stamps, drawn)

    def sweeps(self) -> list[str]:
        """Return the names of folders with a trade-off."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{SWEEP}"))

    def sweep(self, name: str) -> str:
        """Return the page of a trade-off, made anew.

        Raises:
            PrivauditError: It is missing or damaged.
        """
        place = self._place(name, SWEEP)
        stamp = _file_stamp(place / SWEEP)
        return self._keeping(
            ("sweep", name), stamp, lambda: render_sweep(read_sweep(place))
        )

    def drawn(self, key: Any, stamp: Any, draw: Callable[[], str]) -> str:
        """Return a picture, drawn again only if what it shows has changed."""
        return self._keeping(("figure", key), stamp, draw)

    def _keeping(self, key: Any, stamp: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            before, made = self._kept.get(key, (None, None))
            if made is None or before != stamp:
                made = make()
                self._kept[key] = stamp, made
                pages = [one for one in self._kept if one[0] != "audit"]
                for one in pages[:-_MOST_PAGES]:
                    del self._kept[one]
            return made

    def _stamp(self, name: str, scenario: str) -> tuple[Any, ...]:
        run = self.folder / name
        audit = run / "audits" / scenario
        files = [run / one for one in (HEADER, "privacy.json", "ledger.npz")]
        return tuple(map(_file_stamp, [*files, audit / AUDIT, audit / SCORES]))


def _file_stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_served(run: Run, scenario: str) -> ServedAudit:
    try:
        stored = read_audit(run, scenario)
        audit = restore_audit(stored)
        audit_row(Findings(audit), "")  # what it reads, such as privacy.json, is there
    except BROKEN as error:
        return ServedAudit(run.name, scenario, error=error_text(error))
    return ServedAudit(run.name, scenario, audit, stored.class_names)


def error_text(error: BaseException) -> str:
    """Return an error as one line, with its kind where it was not raised on purpose."""
    if isinstance(error, PrivauditError):
        return one_line(str(error))
    return one_line(f"It cannot be read: {error!r}.")
