"""What models write, server's and clients': FedRand's table 1; and what was sent."""

from collections.abc import Mapping
from statistics import fmean

from privaudit.auditing.audit import Audit
from privaudit.report.report_data import ReportData
from privaudit.report.wording import TableCell, TableRows, heading
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.estimate import Estimate

_WAYS = ("bytes_up", "bytes_down")


def written_rows(data: ReportData) -> tuple[list[str], TableRows]:
    """Return metrics, and how well models write on all test records.

    Two rows for each run: its server's model, and its clients' on average; none where
    no model writes.
    """
    each = [
        (one.label, who, estimates)
        for one in data.writers.runs
        for who, estimates in _written(one.audit).items()
        if estimates
    ]
    known = dict.fromkeys(name for *_, estimates in each for name in estimates)
    names = [name for name in METRICS if name in known]
    names += [name for name in known if name not in names]
    none = TableCell("-")
    rows: TableRows = [
        (label, who, *(TableCell.of(e[n]) if n in e else none for n in names))
        for label, who, e in each
    ]
    return list(map(heading, names)), rows


def _written(audit: Audit) -> dict[str, Mapping[str, Estimate]]:
    """Return each metric on all test records, of the server's and clients' models."""
    utility = audit.measured_utility
    if utility.captions:
        return {who: utility.captions.get(who, {}) for who in ("server", "clients")}
    both = {"server": utility.server, "clients": utility.everywhere}
    return {who: {utility.metric: e} if e else {} for who, e in both.items()}


def traffic_rows(data: ReportData) -> TableRows:
    """Return the bytes of a round, on average; no row where no model writes.

    Of several runs also the change of the sum, against the first.
    """
    if not data.writers.runs:
        return []
    sent = [
        [fmean(line[way] for line in a.run.metrics) for way in _WAYS]
        for a in data.audits
    ]
    first, several = sum(sent[0]), len(sent) > 1
    rows: TableRows = []
    for number, (one, ways) in enumerate(zip(data.runs, sent, strict=True)):
        shown, change = map(size, (*ways, sum(ways))), ""
        if number and first:
            change = f"{100 * (sum(ways) / first - 1):+.1f} %"
        rows.append((one.label, *shown, *[change] * several))
    return rows


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
