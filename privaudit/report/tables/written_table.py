"""What models write, server's and clients': FedRand's table 1; and what was sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from privaudit.auditing.audit import Audit
from privaudit.report.tables.table import TableCell
from privaudit.report.wording import heading, writes
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.estimate import Estimate


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


def written_table(audits: Sequence[Audit], labels: Sequence[str]) -> WrittenTable:
    """Return how well models write, without a row where none does."""
    each = [
        (label, who, estimates)
        for label, audit in zip(labels, audits, strict=True)
        if writes(audit)
        for who, estimates in _measured(audit).items()
        if estimates
    ]
    known = dict.fromkeys(name for *_, estimates in each for name in estimates)
    heads = [name for name in METRICS if name in known]
    heads += [name for name in known if name not in heads]
    rows = [
        WrittenRow(label, who, tuple(_cell(estimates.get(name)) for name in heads))
        for label, who, estimates in each
    ]
    return WrittenTable(tuple(map(heading, heads)), tuple(rows))


def _measured(audit: Audit) -> dict[str, Mapping[str, Estimate]]:
    """Return each metric on all test records, of the server's and clients' models."""
    utility = audit.measured_utility
    if utility.captions:
        return {who: utility.captions.get(who, {}) for who in ("server", "clients")}
    both = {"server": utility.server, "clients": utility.everywhere}
    return {who: {utility.metric: e} if e else {} for who, e in both.items()}


def _cell(estimate: Estimate | None) -> TableCell:
    return TableCell.of(estimate) if estimate else TableCell("-")


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


def traffic_rows(audits: Sequence[Audit], labels: Sequence[str]) -> list[TrafficRow]:
    """Return the bytes of a round; none where no model writes."""
    if not any(map(writes, audits)):
        return []
    sent = [(_mean(audit, "bytes_up"), _mean(audit, "bytes_down")) for audit in audits]
    first = sum(sent[0])
    return [
        TrafficRow(
            label,
            size(up),
            size(down),
            size(up + down),
            f"{100 * ((up + down) / first - 1):+.1f} %" if number and first else "",
        )
        for number, (label, (up, down)) in enumerate(zip(labels, sent, strict=True))
    ]


def _mean(audit: Audit, name: str) -> float:
    return fmean(line[name] for line in audit.run.metrics)


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
