"""``python -m tests.corpus [WORD ...]``: run all bad inputs, or some by name."""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.corpus.all_cases import all_cases, prepare
from tests.corpus.case import Case
from tests.corpus.running import Outcome, run_cases
from tests.corpus.world import make_world
from tests.plugins import declare_packages_beside


def main(argv: Sequence[str]) -> int:
    """Run the cases, print what is wrong, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus")
    parser.add_argument("words", nargs="*", help="which a case's name must hold")
    parser.add_argument("--every", type=int, default=1, help="one of so many")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--world", type=Path, help="keep what is spoilt, for next time")
    asked = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-") as place:
        declare_packages_beside(Path(place) / "beside")  # costs and shift
        prepare()
        world = (asked.world or Path(place)) / "world"
        make_world(world)
        cases = [c for c in all_cases(world) if all(w in c.name for w in asked.words)]
        random.Random(0).shuffle(cases)
        cases = cases[:: asked.every]
        print(f"{len(cases)} cases; ready after {time.monotonic() - started:.0f} s")
        wrong = _run(cases, world, asked.processes)
    seconds = time.monotonic() - started
    print(f"{len(cases)} cases in {seconds:.0f} s: {wrong} are not as they should be")
    return int(wrong > 0)


def _run(cases: Sequence[Case], world: Path, processes: int) -> int:
    """Return how many are not as they should be."""
    done: list[Outcome] = []
    for one in run_cases(cases, world, processes):
        done.append(one)
        if one.problem:
            print(f"{one.case.name}: {one.problem}", flush=True)
        if len(done) % 100 == 0:
            print(f"... {len(done)} of {len(cases)}", flush=True)
    codes = Counter(one.code for one in done)
    slowest = max((one.seconds for one in done), default=0.0)
    largest = max((one.memory for one in done), default=0)
    print(f"exit codes {dict(codes)}; at most {slowest:.1f} s, {largest >> 20} MiB")
    return sum(bool(one.problem) for one in done)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
