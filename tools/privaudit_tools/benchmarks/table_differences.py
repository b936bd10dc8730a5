"""Tables of docs/results/tables that compare rows of a stored table, paired by seed.

``python -m privaudit_tools.benchmarks.table_differences FOLDER`` writes them between the marks
``<!-- differences: TABLE; METRIC; ROW; OTHER; ... -->`` and ``<!-- end of differences -->``
of its pages, from ``docs/tables/results/TABLE.json``. With ``mean`` behind the last row each
line ends with the mean over its columns.

Likewise ``<!-- compared: TABLE; METRIC; ROW less OTHER; ... -->`` up to ``<!-- end of compared
-->``, a line for each comparison; ``over`` in place of ``less`` is a ratio, what names one row
alone is compared as the one before, and ``others`` are all other rows that share a column.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from statistics import fmean

from privaudit.core.formatting import markdown_table
from privaudit.core.storage import write_bytes
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.benchmarks.table_numbers import by_seed, compared
from privaudit_tools.tables.backbones import span
from privaudit_tools.tables.parts import Column
from privaudit_tools.tables.stored import StoredTable, read_stored
from privaudit_tools.tables.utility_words import PER_CENT, heads, title, unit
from tests.places import ROOT

MARKED = re.compile(
    r"(<!-- differences: (.+?) -->\n).*?(<!-- end of differences -->)", re.DOTALL
)
COMPARED = re.compile(
    r"(<!-- compared: (.+?) -->\n).*?(<!-- end of compared -->)", re.DOTALL
)
_HOW = re.compile(" (less|over) ")
OTHERS = "others"
MEAN = "mean"
Gaps = Mapping[int, float]  # by seed
WritesTable = Callable[[StoredTable, str, Sequence[str]], str]


def with_differences(page: str) -> str:
    """Return a page with its tables of comparisons as the stored tables have them.

    Raises:
        SystemExit: A mark names a metric or a row that its table does not have.
    """
    for mark, table in ((MARKED, differences), (COMPARED, comparisons)):
        page = mark.sub(partial(_written, table), page)
    return page


def _written(table: WritesTable, mark: re.Match[str]) -> str:
    name, *parts = (part.strip() for part in mark[2].split(";"))
    if len(parts) < 2:
        raise SystemExit(
            f"{mark[2]!r} is not a table, a metric and rows: TABLE; METRIC; ROW."
        )
    metric, *rows = parts
    stored = read_stored(ROOT / "docs" / "tables" / "results" / f"{name}.json")
    return f"{mark[1]}\n{table(stored, metric, rows)}\n\n{mark[3]}"


def comparisons(stored: StoredTable, metric: str, pairs: Sequence[str]) -> str:
    """Return a table in Markdown with a line for each comparison, and its caption.

    Args:
        stored: Whose columns become columns, where a comparison has numbers.
        metric: A metric of the table, such as "local".
        pairs: "ROW less OTHER" or "ROW over OTHER", all of one kind; "ROW" alone is
            compared with the OTHER before it, and "others" are all rows that can be.

    Raises:
        SystemExit: There is no such metric or row, no comparison, or no shared seed.
    """
    how = _HOW.search(pairs[0])
    if not how:
        raise SystemExit(f"{pairs[0]!r} has no 'less' or 'over' between two rows.")
    columns = [column.name for column in stored.plan.columns]
    labels = [row.label for row in stored.plan.rows]
    lower, lines = "", dict[str, list[Estimate | None]]()
    for pair in pairs:
        upper, _, named = pair.partition(how[0])
        lower = named or lower
        uppers = [one for one in labels if one != lower]
        for one in uppers if upper == OTHERS else [upper]:
            _refuse_unknown(stored, metric, [one, lower])
            places = [((metric, one, name), (metric, lower, name)) for name in columns]
            line = [compared(stored, *place, how[1]) for place in places]
            if upper != OTHERS or any(line):
                lines[f"{one}{how[0]}{lower}"] = line
    ran = [any(line[i] for line in lines.values()) for i in range(len(columns))]
    if not any(ran):
        raise SystemExit(f"No seed is shared in any of: {'; '.join(pairs)}.")
    found = [one for line in lines.values() for one in line if one]
    kind = _kind(metric) if how[1] == "less" else "ratios"
    none, digits = (0, 1) if how[1] == "less" else (1, 3)
    counts = {one.n[0] for one in found}
    body = [
        [
            head,
            *(_cell(one, none, digits) if one else "" for one in compress(line, ran)),
        ]
        for head, line in lines.items()
    ]
    above = heads(list(compress(columns, ran)), metric)
    return "\n\n".join(
        [
            _caption(stored, metric, kind, counts, len(found), none),
            markdown_table([stored.plan.across, *above], body),
        ]
    )


def differences(stored: StoredTable, metric: str, rows: Sequence[str]) -> str:
    """Return the first row less each other one as tables in Markdown, with a caption.

    Args:
        stored: Whose columns become columns; its groups and the other rows, lines.
        metric: One of the table's.
        rows: Two or more labels; behind them "mean" for a mean over columns.

    Raises:
        SystemExit: There is no such metric or row, only one row, or no shared seed.
    """
    with_mean = rows[-1] == MEAN
    named = rows[: len(rows) - with_mean] or rows
    _refuse_unknown(stored, metric, named)
    first, *others = named
    counts, lines = set[int](), dict[tuple[str, ...], list[list[str]]]()
    for group in stored.plan.groups:
        for other in others:
            gaps = _gaps(stored, metric, group, (first, other))
            if not gaps:
                continue
            if with_mean and (mean := _mean_gaps(list(gaps.values()))):
                gaps[MEAN] = mean
            counts |= {len(one) for one in gaps.values()}
            head = f"{first} less {other}" if len(others) > 1 else ""
            head = ": ".join(filter(None, (group[0].group, head)))
            cells = [_cell(mean_with_t(list(one.values()))) for one in gaps.values()]
            lines.setdefault(tuple(gaps), []).append([head, *cells])
    if not counts:
        raise SystemExit(f"No seed is shared by {first} and {', '.join(others)}.")
    across = stored.plan.across
    tables = [markdown_table([across, *heads], part) for heads, part in lines.items()]
    count = sum(len(line) - 1 for part in lines.values() for line in part)
    less = f"{first} less {others[0]}" if len(others) == 1 else f"{first} less others"
    what = f"{less}, in {_kind(metric)}"
    return "\n\n".join([_caption(stored, metric, what, counts, count), *tables])


def _refuse_unknown(stored: StoredTable, metric: str, rows: Sequence[str]) -> None:
    labels = [row.label for row in stored.plan.rows]
    for what, name, known in (
        ("metric", metric, stored.plan.measured),
        *(("row", row, labels) for row in rows),
    ):
        if name not in known:
            raise SystemExit(f"{name!r} is no {what}. There are: {', '.join(known)}.")
    if len(rows) < 2:
        raise SystemExit(f"{rows[0]!r} is one row: name another one to subtract.")


def _gaps(
    stored: StoredTable, metric: str, group: Sequence[Column], rows: tuple[str, str]
) -> dict[str, Gaps]:
    """Return the differences of two rows by column and seed, where both were run."""
    gaps: dict[str, Gaps] = {}
    for column in group:
        upper, lower = ((metric, row, column.name) for row in rows)
        if pairs := by_seed(stored, upper, lower):
            gaps[column.label] = {seed: a - b for seed, (a, b) in pairs.items()}
    return gaps


def _mean_gaps(gaps: Sequence[Gaps]) -> Gaps:
    shared = set.intersection(*(set(one) for one in gaps))
    return {seed: fmean(one[seed] for one in gaps) for seed in sorted(shared)}


def _cell(found: Estimate, none: int = 0, digits: int = 1) -> str:
    """Return a number with its interval, in bold where that of no effect is outside."""
    value, low, high = (f"{x:.{digits}f}" for x in (found.value, found.low, found.high))
    text = f"{value} [{low}, {high}]".replace("-", "\N{MINUS SIGN}")
    return f"**{text}**" if found.excludes(none) else text


def _kind(metric: str) -> str:
    return "points" if unit(metric) == PER_CENT else unit(metric)


def _caption(
    stored: StoredTable,
    metric: str,
    what: str,
    counts: set[int],
    cells: int,
    none: int = 0,
) -> str:
    seeds = span(min(counts), max(counts))
    return (
        f"*{title(stored.plan, metric)}: {what}, paired by seed (n = {seeds}). "
        f"95 % intervals, each by itself; bold where {none} is outside, by chance in "
        f"about {cells / 20:.1f} of {cells}*"
    )


def main(folder: Path) -> None:
    """Write the tables of comparisons of a folder's pages anew."""
    for page in sorted(folder.glob("*.md")):
        write_bytes(page, with_differences(page.read_text("utf-8")).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
