"""What models write, server's and clients': FedRand's table 1; and what was sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from privaudit.auditing.audit import Audit
from privaudit.report.report_data import ReportData
from privaudit.report.wording import TableCell, heading
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.estimate import Estimate

_WAYS = ("bytes_up", "bytes_down")


@dataclass(frozen=True)
class WrittenRow:
    """What one run's server's model writes, or its clients' models on average.

    Attributes:
        cells: One for each heading; "-" where a metric was not measured.
    """

    run: str
    who: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class WrittenTable:
    """How well models write, on all test records.

    Attributes:
        heads: The metrics.
        rows: Two for each run.
    """

    heads: tuple[str, ...]
    rows: tuple[WrittenRow, ...]


def written_table(data: ReportData) -> WrittenTable:
    """Return how well models write, without a row where none does."""
    each = [
        (one.label, who, estimates)
        for one in data.writers.runs
        for who, estimates in _written(one.audit).items()
        if estimates
    ]
    known = dict.fromkeys(name for *_, estimates in each for name in estimates)
    heads = [name for name in METRICS if name in known]
    heads += [name for name in known if name not in heads]
    rows = [
        WrittenRow(
            label,
            who,
            tuple(
                TableCell.of(estimates[name]) if name in estimates else TableCell("-")
                for name in heads
            ),
        )
        for label, who, estimates in each
    ]
    return WrittenTable(tuple(map(heading, heads)), tuple(rows))


def _written(audit: Audit) -> dict[str, Mapping[str, Estimate]]:
    """Return each metric on all test records, of the server's and clients' models."""
    utility = audit.measured_utility
    if utility.captions:
        return {who: utility.captions.get(who, {}) for who in ("server", "clients")}
    both = {"server": utility.server, "clients": utility.everywhere}
    return {who: {utility.metric: e} if e else {} for who, e in both.items()}


@dataclass(frozen=True)
class TrafficRow:
    """What a run sends in a round, on average, to and from all that take part.

    Attributes:
        run: The run's name.
        up: From clients to the server.
        down: From the server to clients.
        both: Their sum.
        change: Of the sum, against the first run: "-24.6 %"; empty for the first.
    """

    run: str
    up: str
    down: str
    both: str
    change: str


def traffic_rows(data: ReportData) -> list[TrafficRow]:
    """Return the bytes of a round; none where no model writes."""
    if not data.writers.runs:
        return []
    sent = [
        tuple(fmean(line[way] for line in a.run.metrics) for way in _WAYS)
        for a in data.audits
    ]
    first = sum(sent[0])
    return [
        TrafficRow(
            one.label,
            size(up),
            size(down),
            size(up + down),
            f"{100 * ((up + down) / first - 1):+.1f} %" if number and first else "",
        )
        for number, (one, (up, down)) in enumerate(zip(data.runs, sent, strict=True))
    ]


def size(count: float | int) -> str:
    """Return a number of bytes for people.

    Example:
        >>> size(983056)
        '983 kB'
    """
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count:.0f} bytes"
