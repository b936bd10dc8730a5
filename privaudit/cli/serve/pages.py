"""The pages: what each shows, as HTML whose texts are escaped."""

from collections import Counter
from collections.abc import Iterator, Sequence
from json import dumps
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from privaudit.auditing.audit import Audit
from privaudit.auditing.storage.load import stored_scenarios
from privaudit.cli.commands.compare import legend, p_text, sentences_of
from privaudit.cli.serve.served_runs import (
    BROKEN,
    ServedAudit,
    ServedRuns,
    error_text,
)
from privaudit.cli.status import in_words, lines_of
from privaudit.core.errors import ConfigError
from privaudit.evaluation.compare.compare import RunComparison, compare
from privaudit.report.columns import audit_row, columns
from privaudit.report.figures.figure_style import to_svg
from privaudit.report.figures.figures import tradeoff_svg
from privaudit.report.figures.training_figure import training_alt, training_plot
from privaudit.report.index import audits_summary
from privaudit.report.page_template import render
from privaudit.report.report_data import ReportData
from privaudit.report.wording import interval, point

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
    readable = [one.audit for one in audits if one.audit]
    return _page(
        served,
        "runs",
        summary=audits_summary(readable),
        columns=columns(ReportData(()), "index"),
        rows=[*_ordered(rows), *_audit_rows(audits)],
        progress=list(lines_of({"sweeps": status["sweeps"], "runs": {}})),
        sweeps=served.sweeps(),
    )


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["leak_rank"], row["run"]), reverse=True)


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
    lines = run.metrics
    stamp = dumps(lines, sort_keys=True)
    figure = served.drawn(name, stamp, lambda: _training_svg(lines))
    return _page(
        served,
        "run",
        run=name,
        trainer=run.config.trainer,
        data=run.config.dataset,
        state=in_words(state),
        live=state["state"] == "running",
        done=len(lines),
        total=max(run.config.rounds, 1),
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
    return _page(
        served,
        "compare",
        first=first[0],
        second=other[0],
        scenario=first[1],
        together=f"/together?{_query(chosen)}",
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
            "verdict": one.change.kind,
            "primary": one.is_primary,
        }
        for one in found.changes
    ]


def _query(chosen: Sequence[str]) -> str:
    return urlencode([("audit", one) for one in chosen])


def frame_page(served: ServedRuns, title: str, page: str) -> str:
    """Return a page that shows another one in a frame of no rights."""
    return _page(served, "frame", title=title, page=page)


def tradeoff_page(
    served: ServedRuns, scenario: str, data: str, trainers: Sequence[str]
) -> str:
    """Return audits in the plane of leakage and utility.

    Args:
        served: The runs.
        scenario: Under which they were attacked; empty: the one of most audits.
        data: The data set and the metric of utility; empty: that of most.
        trainers: Those that are shown; empty: all.
    """
    useful = [one for one in served.audits() if one.audit and one.audit.utility]
    scenarios = _common(one.scenario for one in useful)
    scenario = scenario if scenario in scenarios else next(iter(scenarios), "")
    useful = [one for one in useful if one.scenario == scenario]
    sets = _common(map(_data_of, useful))
    data = data if data in sets else next(iter(sets), "")
    useful = [one for one in useful if _data_of(one) == data]
    known = sorted({_trainer(one) for one in useful})
    chosen = [name for name in known if name in trainers] or known
    shown = [one for one in useful if _trainer(one) in chosen]
    return _page(
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


def _data_of(one: ServedAudit) -> str:
    audit = _audit(one)
    return f"{audit.run.config.dataset}: {audit.measured_utility.metric}"


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
    return served.drawn(
        key,
        tuple(one.stamp for one in shown),
        lambda: tradeoff_svg(data, "plane"),
    )


def message_page(served: ServedRuns, title: str, text: str) -> str:
    """Return a page with one message."""
    return _page(served, "message", title=title, text=text)


def _page(served: ServedRuns, name: str, **content: Any) -> str:
    return render(f"serve/{name}.html.jinja", folder=str(served.folder), **content)
