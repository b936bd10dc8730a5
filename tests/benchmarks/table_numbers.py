"""Numbers that docs/results.md draws from a plan's tables, and no table prints.

``python -m tests.benchmarks.table_numbers less TABLE.json METRIC ROW COLUMN METRIC ROW COLUMN``
prints the first cell less the second one, paired by seed, with Student's 95 % interval;
``over`` in place of ``less`` their ratio. TABLE.json is what ``privaudit table`` wrote.

``python -m tests.benchmarks.table_numbers differences PAGE.md`` writes, between the marks
``<!-- differences: TABLE; METRIC; ROW; OTHER; ... -->`` and ``<!-- end of differences -->``
of a page, the first row less each other one, from ``docs/tables/results/TABLE.json``.

``python -m tests.benchmarks.table_numbers lengths TABLE.json RUNS`` prints, for each cell
of DP-FPL's that was trained in RUNS, how long clients' local prompts are and the global
one. A run keeps their sums alone, one of each of K clients: a client's distance from the
clients' mean, times sqrt(K / (K - 1)), stands for its local prompt, and the mean, less a
K-th of the local prompts' square, for the global one. That is so on average for local
prompts that are independent of each other, as noise and start are; what all clients
learned alike counts as global.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from privaudit import load_run
from privaudit.core.formatting import markdown_table
from privaudit.evaluation.tables.pieces import read_records
from privaudit.evaluation.tables.stored import StoredTable, read_stored
from privaudit.federated.runs.runs import Run
from privaudit.report.tables.utility_words import title
from privaudit.statistics.estimate import Estimate, mean_with_t
from tests.places import ROOT

Cell = tuple[str, str, str]  # metric, row, column
MARKED = re.compile(
    r"(<!-- differences: (.+?) -->\n).*?(<!-- end of differences -->)", re.DOTALL
)


def paired(table: Path, upper: Cell, lower: Cell, how: str) -> Estimate:
    """Return a difference or a ratio of two cells over seeds.

    Raises:
        SystemExit: A cell is not stored by seed, or the two share none.
    """
    pairs = _shared(read_stored(table), upper, lower)
    if not pairs:
        raise SystemExit(f"{table} has no seeds that {upper} and {lower} share.")
    if how == "over":
        return mean_with_t([a / b for a, b in pairs])
    return mean_with_t([a - b for a, b in pairs])


def _shared(stored: StoredTable, upper: Cell, lower: Cell) -> list[tuple[float, float]]:
    """Return both cells' numbers of the seeds that both have."""
    over = stored.plan.over
    cells = [stored.cells.get((r, c, m, over)) for m, r, c in (upper, lower)]
    a, b = (cell.by_seed if cell else {} for cell in cells)
    return [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]


def with_differences(page: str) -> str:
    """Return a page with its tables of differences as the stored tables have them."""

    def written(mark: re.Match[str]) -> str:
        name, metric, *rows = (part.strip() for part in mark[2].split(";"))
        place = ROOT / "docs" / "tables" / "results" / f"{name}.json"
        return (
            f"{mark[1]}\n{_differences(read_stored(place), metric, rows)}\n\n{mark[3]}"
        )

    return MARKED.sub(written, page)


def _differences(stored: StoredTable, metric: str, rows: Sequence[str]) -> str:
    """Return the first row less each other one as tables in Markdown, with a caption."""
    first, *others = rows
    counts, parts = set[int](), dict[tuple[str, ...], list[list[str]]]()
    for group in stored.plan.groups:
        for other in others:
            pairs = {
                column.label: _shared(
                    stored, (metric, first, column.name), (metric, other, column.name)
                )
                for column in group
            }
            pairs = {label: both for label, both in pairs.items() if both}
            counts |= {len(both) for both in pairs.values()}
            named = " less ".join((first, other)) if len(others) > 1 else ""
            head = ": ".join(filter(None, (group[0].group, named)))
            if pairs:
                cells = [
                    _cell(mean_with_t([a - b for a, b in p])) for p in pairs.values()
                ]
                parts.setdefault(tuple(pairs), []).append([head, *cells])
    least, most = min(counts), max(counts)
    seeds = str(most) if least == most else f"{least} to {most}"
    less = f"{first} less {others[0]}" if len(others) == 1 else f"{first} less others"
    count = sum(len(line) - 1 for lines in parts.values() for line in lines)
    caption = (
        f"*{title(stored.plan, metric)}: {less}, in points, paired by seed (n = {seeds}). "
        "Intervals of 95 %, each by itself; bold where 0 is outside, which happens by "
        f"chance in about {count / 20:.1f} of {count}*"
    )
    across = stored.plan.across
    tables = [markdown_table([across, *heads], lines) for heads, lines in parts.items()]
    return "\n\n".join([caption, *tables])


def _cell(gap: Estimate) -> str:
    """Return a difference with its interval, in bold where 0 is outside."""
    text = f"{gap.value:.1f} [{gap.low:.1f}, {gap.high:.1f}]"
    text = text.replace("-", "\N{MINUS SIGN}")
    return f"**{text}**" if gap.low > 0 or gap.high < 0 else text


def lengths(run: Run) -> tuple[float, float]:
    """Return the mean length of the clients' local prompts, and the global one's."""
    prompts = torch.stack([one["context"] for one in run.personal_models.values()])
    middle, count = prompts.mean(0), len(prompts)
    apart = [float((prompt - middle).norm()) for prompt in prompts]
    local = fmean(apart) * (count / (count - 1)) ** 0.5
    return local, max(0.0, float(middle.norm()) ** 2 - local**2 / count) ** 0.5


def main(how: str, table: str, *rest: str) -> None:
    """Print what is asked for."""
    if how == "differences":
        page = Path(table)
        page.write_text(with_differences(page.read_text("utf-8")), encoding="utf-8")
        return
    if how in ("less", "over"):
        one, row, column, other, below, under = rest
        upper, lower = (one, row, column), (other, below, under)
        print(paired(Path(table), upper, lower, how))
        return
    (runs,) = rest
    for record in read_records(Path(table)).runs:
        if record.trainer == "dp-fpl" and (Path(runs) / record.run).is_dir():
            local, shared = lengths(load_run(Path(runs) / record.run))
            print(f"{record.column}, seed {record.seed}: {local:.3g}, {shared:.3g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
