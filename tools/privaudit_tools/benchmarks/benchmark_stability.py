"""Which rows of a benchmark hang on the last bits of what their models read.

``python -m privaudit_tools.benchmarks.benchmark_stability RESULT.json [--rows RE]`` trains
and attacks the setting that was chosen of each row twice on each tuning seed, each time
with features and tokens moved by up to a unit in the last place. A row is beyond its
stability limit if a seed's two numbers differ by more than a tenth of the standard
deviation over evaluation seeds: its numbers are one of several that rounding could have
given, and another version gives others. Means and intervals stand. Which rows these are
is written into the result, for its page; with --rows it is only printed.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import stdev

from privaudit.core.errors import ConfigError
from privaudit.core.storage import write_json
from privaudit_tools.benchmarks.table_stability import (
    HEAD,
    PERTURBATIONS,
    Shaken,
    elsewhere,
    line,
)
from privaudit_tools.equal_utility.benchmark import (
    BenchmarkResult,
    entries_of,
    read_result,
)
from privaudit_tools.equal_utility.choosing import Choice
from privaudit_tools.equal_utility.outcomes import RunRecord, perform

POINTS = 100


def shaken(
    result: BenchmarkResult, choice: Choice, seeds: Sequence[int], runs: Path
) -> Iterator[Shaken]:
    """Yield utility and leak of a row's chosen setting, in points.

    Args:
        seeds: Seeds to train with; evaluation seeds are met once, and not here.
        runs: Folder that keeps the trained runs.

    Raises:
        ConfigError: A run fails.
    """
    utility = result.plan.utility
    judged = choice.measured(result.runs, result.plan.evaluation_seeds, utility)
    found = [
        choice.measured(_performed(result, choice, seeds, runs, n), seeds, utility)
        for n in PERTURBATIONS
    ]
    for name, of in (("utility", "utility"), (choice.attack, "leak")):
        one, other = ({s: POINTS * x for s, x in getattr(f, of).items()} for f in found)
        spread = POINTS * stdev(getattr(judged, of).values())
        pairs = {seed: (one[seed], other[seed]) for seed in seeds}
        yield Shaken(choice.row, choice.setting, name, pairs, spread)


def _performed(
    result: BenchmarkResult,
    choice: Choice,
    seeds: Sequence[int],
    runs: Path,
    number: int,
) -> list[RunRecord]:
    records = []
    for entry in entries_of(result.plan, seeds):
        if (entry.row, entry.setting) != (choice.row, choice.setting):
            continue
        question = replace(entry.question, chosen=((choice.after, choice.attack),))
        with elsewhere(number):
            record = perform(
                entry.run, entry.row, entry.setting, question, runs / str(number)
            )
        if record.error:
            raise ConfigError(f"{entry.run.label}: {record.error}")
        records.append(record)
    return records


def main() -> None:
    """Print what was compared of each row, and which are beyond their limit."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("result", type=Path)
    asked.add_argument("--rows", default="")
    asked.add_argument("--runs", type=Path, default=Path("runs") / "stability")
    given = asked.parse_args()
    result = read_result(given.result)
    assert result.seal.choices is not None  # a result was evaluated
    beyond: dict[str, None] = {}
    print(HEAD, flush=True)
    for choice in result.seal.choices.rows:
        if not re.search(given.rows, choice.row):
            continue
        found = list(shaken(result, choice, result.plan.tuning_seeds, given.runs))
        print(line(given.result.stem, found), flush=True)
        if not all(one.is_stable for one in found):
            beyond[choice.row] = None
    print(f"{len(beyond)} beyond their stability limit.", *beyond, sep="\n  ")
    if not given.rows:
        noted = result.model_copy(update={"beyond": tuple(beyond)})
        write_json(given.result, noted.model_dump(mode="json"))


if __name__ == "__main__":
    main()
