"""Which rows of plans hang on the last bits of what their models read.

``python -m privaudit_tools.benchmarks.table_stability PLAN.toml ... [--rows RE] [--columns RE]``
trains a plan's rows twice, in its first column unless told otherwise, each time with
features and tokens, or the embeddings of words, moved by up to a unit in the last
place. A row is beyond its stability limit if a seed's two numbers differ by more than a
tenth of the standard deviation over seeds, those of the stored table where it has the
row: rounding errors grow, and another processor gives other numbers.
``--set learning_rate=0.005`` tries another setting. Runs stay in ``--runs``: those that
plans share, and those of a command that was stopped, are not trained again.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from math import inf
from pathlib import Path
from statistics import stdev
from typing import Any, cast, get_args
from unittest.mock import patch

import torch
from torch import Tensor

from privaudit import load_run
from privaudit.cli.options import settings as read_settings
from privaudit.core.errors import ConfigError
from privaudit.core.portable_bits import Bits, chosen_bits, start_anew
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import Records
from privaudit.models.frozen_model import FrozenModel
from privaudit_tools.tables.matrix import RESULTS
from privaudit_tools.tables.metrics import Metric, scale
from privaudit_tools.tables.outcomes import TableOutcome, perform
from privaudit_tools.tables.overrides import overridden
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import TablePlan, read_plan
from privaudit_tools.tables.schedule import PlannedRun, schedule
from privaudit_tools.tables.stored import StoredTable, read_stored
from tests.elsewhere import moved, with_other_last_bits

PERTURBATIONS = (1, 2)
ALLOWED = 0.1  # of the standard deviation over seeds
HEAD = (
    "| plan | row | columns | seeds | stable "
    "| furthest, or all beyond: moved, of SD over seeds |\n|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Shaken:
    """One number of a row under two perturbations.

    Attributes:
        pairs: By seed, both numbers, as printed.
        spread: Standard deviation over seeds.
    """

    row: str
    column: str
    metric: Metric
    pairs: Mapping[int, tuple[float, float]]
    spread: float

    @property
    def moved(self) -> float:
        """The largest difference of any seed."""
        return max(abs(one - other) for one, other in self.pairs.values())

    @property
    def is_stable(self) -> bool:
        """Whether the two agree to a tenth of the spread."""
        return self.moved <= ALLOWED * self.spread

    @property
    def share(self) -> float:
        """Of the spread, by which it moved."""
        if not self.moved:
            return 0.0
        return self.moved / self.spread if self.spread else inf

    def __str__(self) -> str:
        return f"{self.metric} {self.moved:.2f} of {self.spread:.2f}"


def line(plan: str, row: Sequence[Shaken]) -> str:
    """Return the numbers of a row as a line of Markdown: the furthest, or all beyond."""
    furthest = max(row, key=lambda one: one.share)
    named = [one for one in row if not one.is_stable] or [furthest]
    seeds = ", ".join(map(str, furthest.pairs))
    stable = sum(one.is_stable for one in row)
    columns = {one.column for one in row}
    several = len(columns) > 1
    where = f"{len(columns)} columns" if several else furthest.column
    said = "; ".join(f"{one.column}: {one}" if several else str(one) for one in named)
    cells = plan, furthest.row, where, seeds, f"{stable} of {len(row)}", said
    return f"| {' | '.join(cells)} |"


def shaken(
    plan: TablePlan, piece: Piece, runs: Path, stored: StoredTable | None = None
) -> Iterator[list[Shaken]]:
    """Yield the numbers of each cell that a piece of a plan has.

    Args:
        plan: Its seeds are all run.
        piece: Which cells, one column of them.
        runs: Keeps what is trained.
        stored: Has the spread over more seeds.

    Raises:
        ConfigError: A run fails, or there are fewer than two seeds.
    """
    if len(plan.seeds) < 2:
        raise ConfigError(
            "A spread needs two seeds, and there is one. Give --seeds 1,2."
        )
    planned = piece.of(plan, schedule(plan, piece.holds))
    by_digest = {run.short_hash: run for run in planned.runs}
    cells: dict[tuple[str, str], dict[int, PlannedRun]] = {}
    for (row, column, seed), digest in planned.places.items():
        if digest in by_digest:
            cells.setdefault((row, column), {})[seed] = by_digest[digest]
    for cell, by_seed in cells.items():
        both = {seed: _performed(run, runs) for seed, run in by_seed.items()}
        _say_how_far(cell, both, runs)
        yield list(_compared(plan, cell, both, stored))


def _performed(run: PlannedRun, runs: Path) -> list[TableOutcome]:
    return [performed_elsewhere(run, runs, number) for number in PERTURBATIONS]


def performed_elsewhere(run: PlannedRun, runs: Path, number: int) -> TableOutcome:
    """Return what comes of a run whose records have other last bits.

    Raises:
        ConfigError: It fails.
    """
    with elsewhere(number):
        outcome = perform(run, runs / str(number))
    if outcome.error:
        raise ConfigError(f"{run.label}: {outcome.error}")
    return outcome


@contextmanager
def elsewhere(number: int) -> Iterator[None]:
    """Let all models read features and tokens with other last bits, by this number.

    What reads words alone has its table of embeddings moved, and put back at the end.
    """
    encode = FrozenModel.encode
    tables: dict[Tensor, Tensor] = {}

    def encoded(model: FrozenModel, *asked: Any, **how: Any) -> Records:
        records = encode(model, *asked, **how)
        if records.words is not None and records.tokens is None:
            table = _embeddings(model)
            plain = tables.setdefault(table, table.detach().clone())
            generator = torch.Generator().manual_seed(number)
            table.detach().copy_(moved(plain, generator))
        return with_other_last_bits(records, number)

    try:
        with patch.object(FrozenModel, "encode", encoded):
            yield
    finally:
        for table, plain in tables.items():
            table.detach().copy_(plain)


def _embeddings(model: FrozenModel) -> Tensor:
    """Return the table that a model's words are looked up in.

    Raises:
        ConfigError: Nobody knows where the model keeps it.
    """
    language = getattr(model, "language", None)
    inner: Any = getattr(model, "_model", getattr(language, "model", None))
    if not hasattr(inner, "get_input_embeddings"):
        raise ConfigError(
            f"{type(model).__name__} reads words, and its table of embeddings was not "
            "found, so that nothing could be moved. Leave its rows out."
        )
    return cast(Tensor, inner.get_input_embeddings().weight)


def _compared(
    plan: TablePlan,
    cell: tuple[str, str],
    both: Mapping[int, Sequence[TableOutcome]],
    stored: StoredTable | None,
) -> Iterator[Shaken]:
    for metric in plan.wanted:
        pairs = {
            seed: (scale(metric) * one, scale(metric) * other)
            for seed, outcomes in both.items()
            for one, other in [[o.value(metric, plan.over) for o in outcomes]]
            if one is not None and other is not None
        }
        if len(pairs) > 1:
            there = stored and stored.cells.get((*cell, metric, plan.over))
            known = there.summary.spread if there else None
            spread = stdev(one for one, _ in pairs.values())
            yield Shaken(*cell, metric, pairs, spread if known is None else known)


def _say_how_far(
    cell: tuple[str, str], both: Mapping[int, Sequence[TableOutcome]], runs: Path
) -> None:
    for seed, outcomes in both.items():
        one, other = (
            load_run(runs / str(number) / outcome.run).personal_models
            for number, outcome in zip(PERTURBATIONS, outcomes, strict=True)
        )
        furthest = max((distance(one[c], other[c]) for c in one), default=0.0)
        seconds = sum(outcome.seconds for outcome in outcomes) / len(outcomes)
        said = f"models {furthest:.1e} apart ({seconds:.0f} s)"
        print(f"{', '.join(cell)}, seed {seed}: {said}", file=sys.stderr, flush=True)


def distance(one: Tensors, other: Tensors) -> float:
    """Return how far two models are apart, as a share of the first one's norm.

    A memory's classes and gaps are whole numbers and truths, and count as numbers.
    """
    first, second = (
        {n: t.double() for n, t in model.items()} for model in (one, other)
    )
    apart = sum(float((first[n] - second[n]).norm()) ** 2 for n in first)
    whole = sum(float(tensor.norm()) ** 2 for tensor in first.values())
    return (apart / whole) ** 0.5 if whole else 0.0


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: try 1,2,3")
    return tuple(map(int, text.split(",")))


def main() -> None:
    """Print what was compared of each row, and which cells are beyond their limit."""
    start_anew(chosen_bits(sys.argv, by_default="portable"))  # as `privaudit table`
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("plans", nargs="+", type=Path)
    asked.add_argument("--rows", default="")
    asked.add_argument("--columns")
    asked.add_argument("--seeds", type=_numbers, default=(1, 2, 3))
    asked.add_argument("--set", action="append", dest="setting")
    asked.add_argument("--bits", choices=get_args(Bits))  # read above
    asked.add_argument("--runs", type=Path, default=Path("runs") / "stability")
    given = asked.parse_args()
    beyond: dict[str, None] = {}
    print(HEAD, flush=True)
    for path in given.plans:
        plan = overridden(
            read_plan(path), read_settings(given.setting), {}, given.seeds
        )
        columns = given.columns or f"^{re.escape(plan.columns[0].name)}$"
        there = path.parent / RESULTS / f"{path.stem}.json"
        stored = read_stored(there) if there.is_file() else None
        cells = shaken(plan, Piece(given.rows, columns), given.runs, stored)
        for _, found in groupby(chain.from_iterable(cells), lambda one: one.row):
            row = list(found)
            print(line(path.stem, row), flush=True)
            for one in row:
                if not one.is_stable:
                    beyond[f"{path.stem}: {one.row}, {one.column}"] = None
    print(f"{len(beyond)} beyond their stability limit.", *beyond, sep="\n  ")
    raise SystemExit(bool(beyond))


if __name__ == "__main__":
    main()
