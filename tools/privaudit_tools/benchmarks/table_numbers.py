"""Numbers that docs/results draws from a plan's tables, and no table prints.

``python -m privaudit_tools.benchmarks.table_numbers less TABLE.json METRIC ROW COLUMN METRIC ROW
COLUMN``
prints the first cell less the second one, paired by seed, with Student's 95 % interval;
``over`` in place of ``less`` their ratio. TABLE.json is what ``privaudit table`` wrote.

``python -m privaudit_tools.benchmarks.table_numbers lengths TABLE.json RUNS`` prints, for each cell
of DP-FPL's that was trained in RUNS, how long clients' local prompts are and the global
one. A run keeps their sums alone, one of each of K clients: a client's distance from the
clients' mean, times sqrt(K / (K - 1)), stands for its local prompt, and the mean, less a
K-th of the local prompts' square, for the global one. That is so on average for local
prompts that are independent of each other, as noise and start are; what all clients
learned alike counts as global.
"""

import sys
from pathlib import Path
from statistics import fmean

import torch

from privaudit import load_run
from privaudit.runs.run import Run
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.tables.pieces import read_records
from privaudit_tools.tables.stored import StoredTable, read_stored

Cell = tuple[str, str, str]  # metric, row, column


def paired(table: Path, upper: Cell, lower: Cell, how: str) -> Estimate:
    """Return a difference or a ratio of two cells over seeds.

    Raises:
        SystemExit: A cell is not stored by seed, the two share none, or as :func:`compared`.
    """
    found = compared(read_stored(table), upper, lower, how)
    if found is None:
        raise SystemExit(f"{table} has no seeds that {upper} and {lower} share.")
    return found


def compared(
    stored: StoredTable, upper: Cell, lower: Cell, how: str
) -> Estimate | None:
    """Return the same of a table that was read; None without a shared seed.

    Raises:
        SystemExit: A number to divide by is 0.
    """
    pairs = by_seed(stored, upper, lower).values()
    if not pairs:
        return None
    if how == "over" and not all(b for _, b in pairs):
        raise SystemExit(
            f"{lower} is 0 of a seed: nothing is a ratio to that. Use less."
        )
    return mean_with_t([a / b if how == "over" else a - b for a, b in pairs])


def by_seed(
    stored: StoredTable, upper: Cell, lower: Cell
) -> dict[int, tuple[float, float]]:
    """Return two cells' numbers for each seed that both have; empty without any."""
    over = stored.plan.over
    cells = [stored.cells.get((r, c, m, over)) for m, r, c in (upper, lower)]
    a, b = (cell.by_seed if cell else {} for cell in cells)
    return {seed: (a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())}


def lengths(run: Run) -> tuple[float, float]:
    """Return the mean length of the clients' local prompts, and the global one's."""
    prompts = torch.stack([one["context"] for one in run.personal_models.values()])
    middle, count = prompts.mean(0), len(prompts)
    apart = [float((prompt - middle).norm()) for prompt in prompts]
    local = fmean(apart) * (count / (count - 1)) ** 0.5
    return local, max(0.0, float(middle.norm()) ** 2 - local**2 / count) ** 0.5


def main(how: str, table: str, *rest: str) -> None:
    """Print what is asked for."""
    if how in ("less", "over"):
        one, row, column, other, below, under = rest
        upper, lower = (one, row, column), (other, below, under)
        print(paired(Path(table), upper, lower, how))
        return
    if how != "lengths":
        raise SystemExit(
            f"{how!r} is nothing to print. There are: less, over, lengths."
        )
    (runs,) = rest
    for record in read_records(Path(table)).runs:
        if record.trainer == "dp-fpl" and (Path(runs) / record.run).is_dir():
            local, shared = lengths(load_run(Path(runs) / record.run))
            print(f"{record.column}, seed {record.seed}: {local:.3g}, {shared:.3g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
