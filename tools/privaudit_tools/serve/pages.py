"""Pages of ``privaudit serve``: runs as they are now, as HTML whose texts are escaped.

Runs are read when they are asked for, and again when they change.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from json import dumps
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from privaudit.auditing.audit import Audit
from privaudit.auditing.stored_audit import (
    AUDIT,
    SCORES,
    read_audit,
    restore_audit,
    stored_scenarios,
)
from privaudit.cli.commands.compare import legend, p_text, sentences_of
from privaudit.cli.status import in_words, lines_of, read_status
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditError,
    one_line,
    shown,
)
from privaudit.core.formatting import outcome_in_words
from privaudit.core.storage import DAMAGE
from privaudit.evaluation.compare.compare import RunComparison, compare
from privaudit.evaluation.tradeoff.result import SWEEP, read_sweep
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report.columns import audit_row, columns
from privaudit.report.figures.figure_style import to_svg
from privaudit.report.figures.tradeoff_figure import tradeoff_svg
from privaudit.report.index import audits_summary
from privaudit.report.page import render_report
from privaudit.report.page_template import render
from privaudit.report.report_data import Findings, ReportData
from privaudit.report.sweep import render_sweep
from privaudit.report.wording import interval, point
from privaudit.runs.own_files import HEADER
from privaudit.runs.run import Run, load_run
from privaudit_tools.serve.training_figure import training_alt, training_plot

HERE = str(Path(__file__).parent)
"""Where the templates lie, and style and script."""
_MOST_PAGES = 32  # that are kept: drawing one takes a second
BROKEN = (PrivauditError, *DAMAGE)
"""What reading foreign files may raise."""


@dataclass(frozen=True)
class ServedAudit:
    """An audit that can be shown, or why it cannot.

    Attributes:
        audit: None where its files are damaged.
        class_names: By class index, so that no data set is loaded for them.
        stamp: Of the files that it was read from: another one where they changed.
    """

    run: str
    scenario: str
    audit: Audit | None = None
    class_names: tuple[str, ...] = ()
    error: str = ""
    stamp: tuple[Any, ...] = ()


class ServedRuns:
    """What a folder of runs holds; nothing is written, and no code of a run is called."""

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
        return load_run(self._file(name, [HEADER]).parent)

    def _file(self, name: str, files: Iterable[str]) -> Path:
        for path in self._files(files):
            if path.parent.name == name:
                return path
        raise MissingFileError(f"There is no {shown(name)} in {self.folder}.")

    def _files(self, names: Iterable[str]) -> list[Path]:
        return [path for name in names for path in self.folder.glob(f"*/{name}")]

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
        audits = [one.audit for one in served if one.audit]
        names = [one.class_names for one in served]
        return self._keeping(
            ("report", *picked),
            stamps,
            lambda: render_report(audits, class_names=names),
        )

    def sweeps(self) -> list[str]:
        """Return names of folders with a trade-off, or another package's result."""
        return sorted({path.parent.name for path in self._files(_drawn())})

    def sweep(self, name: str) -> str:
        """Return the page of such a folder, made anew."""
        path = self._file(name, pages := _drawn())
        draw = pages[path.name]
        return self._keeping(("sweep", name), _file_stamp(path), lambda: draw()(path))

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
        files = [
            run / one for one in (HEADER, "metrics.jsonl", "privacy.json", "ledger.npz")
        ]
        return tuple(map(_file_stamp, [*files, audit / AUDIT, audit / SCORES]))


def _drawn() -> dict[str, Callable[[], Callable[[Path], str]]]:
    """Return what loads what makes a page of a file; others' by privaudit.pages."""
    others = {one.name: one.load for one in entry_points(group="privaudit.pages")}
    return {SWEEP: lambda: lambda path: render_sweep(read_sweep(path.parent)), **others}


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


Row = dict[str, Any]
Picked = tuple[str, str]
"""A run's name, and a scenario."""

_LAST = 20  # rounds in a table
_FIRST, _BROKEN, _LATER = "9", "8", "0"  # places of rows without a verdict
_PLAIN: Row = {
    "pick": "",
    "scenario": "",
    "link": "",
    "live": False,
    "state": "",
    "error": "",
    "trainer": "",
    "data": "",
}


def runs_page(served: ServedRuns) -> str:
    """Return the table of all runs and audits, with what is training now."""
    status = served.status()
    audits: list[ServedAudit] = []
    rows: list[Row] = []
    for name, state in status["runs"].items():
        rows += _rows_of(served, name, state, audits)
    rows.sort(key=lambda row: (row["leak_rank"], row["run"]), reverse=True)
    readable = [one.audit for one in audits if one.audit]
    return page_of(
        served,
        "runs",
        summary=audits_summary(readable),
        columns=columns(ReportData(()), "index"),
        rows=[*rows, *_audit_rows(audits)],
        progress=list(lines_of({"sweeps": status["sweeps"], "runs": {}})),
        sweeps=served.sweeps(),
    )


def _rows_of(
    served: ServedRuns, name: str, state: Row, audits: list[ServedAudit]
) -> Iterator[Row]:
    """Yield a run's rows without a verdict, and add its audits."""
    if state["state"] == "damaged":
        yield _broken_row(name, "", state["error"])
        return
    try:
        run = served.load(name)
        found, config = list(served.audits_of(run)), run.config
    except BROKEN as error:
        yield _broken_row(name, "", error_text(error))
        return
    audits += [one for one in found if one.audit]
    yield from (
        _broken_row(name, one.scenario, one.error) for one in found if one.error
    )
    live = state["state"] == "running"
    if live or not found:
        yield {
            **_PLAIN,
            "run": name,
            "link": f"/runs/{name}",
            "live": live,
            "state": in_words(state) if not run.is_complete else "never attacked",
            "leak_rank": _FIRST if live else _LATER,
            "trainer": config.trainer,
            "data": config.dataset,
        }


def _broken_row(name: str, scenario: str, error: str) -> Row:
    row = {**_PLAIN, "run": name, "scenario": scenario}
    return {**row, "error": error, "leak_rank": _BROKEN}


def _audit_rows(audits: Sequence[ServedAudit]) -> list[Row]:
    """Return a row for each audit, as the index has it, with what chooses it."""
    readable = [one for one in audits if one.audit]
    data = ReportData.of(list(map(_audit, readable)))
    found = dict(zip(data.runs, readable, strict=True))
    rows = []
    for findings in data.worst_first:
        pick = f"{found[findings].run}/{found[findings].scenario}"
        rows.append({**audit_row(findings, f"/reports/{pick}"), "pick": pick})
    return rows


def run_page(served: ServedRuns, name: str) -> str:
    """Return how a run's training went, or goes, round by round."""
    run = served.load(name)
    state = served.status()["runs"][name]
    lines, is_trained = run.metrics, not isinstance(run, ScoredRun)
    stamp = dumps(lines, sort_keys=True)
    figure = served.drawn(name, stamp, lambda: _training_svg(lines))
    return page_of(
        served,
        "run",
        run=name,
        trainer=run.config.trainer,
        data=run.config.dataset,
        state=in_words(state) if is_trained else "scores, and no rounds",
        live=state["state"] == "running",
        done=len(lines),
        total=max(run.config.rounds, 1) if is_trained else 0,
        figure=Markup(figure),
        lines=list(reversed(lines))[:_LAST],
        last=_LAST,
        scenarios=stored_scenarios(run) if run.is_complete else [],
    )


def _training_svg(lines: Sequence[Row]) -> str:
    figure = training_plot(lines)
    return to_svg(figure, "training", training_alt(lines)) if figure else ""


def compare_page(served: ServedRuns, chosen: Sequence[str]) -> str:
    """Return what two audits differ in.

    Raises:
        ConfigError: There are not two of one scenario, or they cannot be paired.
    """
    if len(chosen) != 2:
        raise ConfigError(
            f"A comparison needs two audits, and {len(chosen)} were chosen. Go back to "
            "the runs, and tick two."
        )
    first, other = (picked(one) for one in chosen)
    if first[1] != other[1]:
        raise ConfigError(
            f"The audits are of two scenarios, {first[1]} and {other[1]}, and their "
            "attacks saw other things. Choose two of one scenario."
        )
    audits = [served.audit(*one) for one in (first, other)]
    for one in audits:
        if one.error:
            raise ConfigError(one.error)
    runs = [served.load(name) for name, _ in (first, other)]
    found = compare(*runs, scenario=first[1], utility=False)
    return page_of(
        served,
        "compare",
        first=first[0],
        second=other[0],
        scenario=first[1],
        together=f"/together?{urlencode([('audit', one) for one in chosen])}",
        columns=columns(ReportData(()), "index"),
        rows=_audit_rows(audits),
        changes=_changes(found),
        sentences=sentences_of(found),
        legend=legend(found),
    )


def picked(text: str) -> Picked:
    """Return the run and the scenario that a tick stands for."""
    name, _, scenario = text.partition("/")
    return name, scenario


def _changes(found: RunComparison) -> list[Row]:
    return [
        {
            "name": one.name,
            "first": f"{one.first:.3f}",
            "second": f"{one.second:.3f}",
            "difference": point(one.change.estimate, signed=True),
            "interval": interval(one.change.estimate),
            "n": " + ".join(map(str, one.change.estimate.n)),
            "p": p_text(one.change.p_value),
            "verdict": outcome_in_words(one.change.kind),
            "primary": one.is_primary,
        }
        for one in found.changes
    ]


def tradeoff_page(
    served: ServedRuns, scenario: str, data: str, trainers: Sequence[str]
) -> str:
    """Return audits in the plane of leakage and utility.

    Of a scenario, and of data and metric, by default those of most audits; of all
    trainers where none is named.
    """
    useful = [one for one in served.audits() if one.audit and one.audit.utility]
    scenarios = _common(one.scenario for one in useful)
    scenario = scenario if scenario in scenarios else next(iter(scenarios), "")
    useful = [one for one in useful if one.scenario == scenario]
    names = _data_names(useful)
    sets = _common(names)
    data = data if data in sets else next(iter(sets), "")
    useful = [one for one, name in zip(useful, names, strict=True) if name == data]
    known = sorted({_trainer(one) for one in useful})
    chosen = [name for name in known if name in trainers] or known
    shown = [one for one in useful if _trainer(one) in chosen]
    return page_of(
        served,
        "tradeoff",
        scenario=scenario,
        scenarios=scenarios,
        data=data,
        sets=sets,
        trainers=[(name, name in chosen) for name in known],
        figure=Markup(_plane(served, shown)),
        columns=columns(ReportData(()), "index"),
        rows=_audit_rows(shown),
    )


def _common(names: Iterator[str] | Any) -> list[str]:
    """Return names once, the most frequent first."""
    return [name for name, _ in Counter[str](names).most_common()]


def _data_names(audits: Sequence[ServedAudit]) -> list[str]:
    """Return each one's data set and metric, told apart where data sets share a name."""
    runs = [_audit(one).run for one in audits]
    sets = {(run.config.dataset, run.header["data_hash"]) for run in runs}
    shared = Counter(name for name, _ in sets)
    names = []
    for one, run in zip(audits, runs, strict=True):
        name, config = run.config.dataset, run.config
        if shared[name] > 1:
            marks = (config.data, config.classes, run.header["data_hash"][:8])
            name += f" ({', '.join(str(mark) for mark in marks if mark)})"
        names.append(f"{name}: {_audit(one).measured_utility.metric}")
    return names


def _trainer(one: ServedAudit) -> str:
    return _audit(one).run.config.trainer


def _audit(one: ServedAudit) -> Audit:
    assert one.audit is not None
    return one.audit


def _plane(served: ServedRuns, shown: Sequence[ServedAudit]) -> str:
    if not shown:
        return ""
    data = ReportData(tuple(ReportData.of(list(map(_audit, shown))).worst_first))
    key = tuple((one.run, one.scenario) for one in shown)
    stamps = tuple(one.stamp for one in shown)
    return served.drawn(key, stamps, lambda: tradeoff_svg(data, "plane"))


def page_of(served: ServedRuns, name: str, **content: Any) -> str:
    """Return a page made of the template of a name."""
    return render(
        f"{HERE}/{name}.html.jinja", here=HERE, folder=str(served.folder), **content
    )
