"""Tables of docs/results/tables that show one row less others, paired by seed.

``python -m privaudit_tools.benchmarks.table_differences FOLDER`` writes them between the marks
``<!-- differences: TABLE; METRIC; ROW; OTHER; ... -->`` and ``<!-- end of differences -->``
of its pages, from ``docs/tables/results/TABLE.json``. With ``mean`` behind the last row each
line ends with the mean over its columns.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from privaudit.core.formatting import markdown_table
from privaudit.core.storage import write_bytes
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.benchmarks.table_numbers import by_seed
from privaudit_tools.tables.backbones import span
from privaudit_tools.tables.parts import Column
from privaudit_tools.tables.stored import StoredTable, read_stored
from privaudit_tools.tables.utility_words import PER_CENT, title, unit
from tests.places import ROOT

MARKED = re.compile(
    r"(<!-- differences: (.+?) -->\n).*?(<!-- end of differences -->)", re.DOTALL
)
MEAN = "mean"
Gaps = Mapping[int, float]  # by seed


def with_differences(page: str) -> str:
    """Return a page with its tables of differences as the stored tables have them.

    Raises:
        SystemExit: A mark names a metric or a row that its table does not have.
    """

    def written(mark: re.Match[str]) -> str:
        name, metric, *rows = (part.strip() for part in mark[2].split(";"))
        stored = read_stored(ROOT / "docs" / "tables" / "results" / f"{name}.json")
        return f"{mark[1]}\n{differences(stored, metric, rows)}\n\n{mark[3]}"

    return MARKED.sub(written, page)


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
    first, *others = rows[: len(rows) - with_mean]
    _refuse_unknown(stored, metric, [first, *others])
    counts, lines = set[int](), dict[tuple[str, ...], list[list[str]]]()
    for group in stored.plan.groups:
        for other in others:
            gaps = _gaps(stored, metric, group, (first, other))
            if not gaps:
                continue
            counts |= {len(one) for one in gaps.values()}
            if with_mean:
                gaps[MEAN] = _mean_gaps(list(gaps.values()))
            named = f"{first} less {other}" if len(others) > 1 else ""
            head = ": ".join(filter(None, (group[0].group, named)))
            cells = [_cell(mean_with_t(list(one.values()))) for one in gaps.values()]
            lines.setdefault(tuple(gaps), []).append([head, *cells])
    if not counts:
        raise SystemExit(f"No seed is shared by {first} and {', '.join(others)}.")
    across = stored.plan.across
    tables = [markdown_table([across, *heads], part) for heads, part in lines.items()]
    count = sum(len(line) - 1 for part in lines.values() for line in part)
    return "\n\n".join(
        [_caption(stored, metric, first, others, counts, count), *tables]
    )


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


def _cell(gap: Estimate) -> str:
    """Return a difference with its interval, in bold where 0 is outside."""
    text = f"{gap.value:.1f} [{gap.low:.1f}, {gap.high:.1f}]"
    text = text.replace("-", "\N{MINUS SIGN}")
    return f"**{text}**" if gap.excludes(0) else text


def _caption(
    stored: StoredTable,
    metric: str,
    first: str,
    others: Sequence[str],
    counts: set[int],
    cells: int,
) -> str:
    seeds = span(min(counts), max(counts))
    less = f"{first} less {others[0]}" if len(others) == 1 else f"{first} less others"
    kind = "points" if unit(metric) == PER_CENT else unit(metric)
    return (
        f"*{title(stored.plan, metric)}: {less}, in {kind}, paired by seed (n = {seeds}). "
        "Intervals of 95 %, each by itself; bold where 0 is outside, which happens by "
        f"chance in about {cells / 20:.1f} of {cells}*"
    )


def main(folder: Path) -> None:
    """Write the tables of differences of a folder's pages anew."""
    for page in sorted(folder.glob("*.md")):
        write_bytes(page, with_differences(page.read_text("utf-8")).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
