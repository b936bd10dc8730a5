"""Memory of `train` and `attack` from 10 to 100 rounds of uploads of 4 MiB.

Run by ``make bench``; every measurement in a process of its own. BENCH_UPLOADS says how
many uploads a round has: 4 by default, which takes 1.8 GB of disk.
"""

import json
import os
from pathlib import Path

from privaudit_tools.benchmarks.measuring import in_own_process, machine

ROUNDS = (10, 100)
UPLOADS = int(os.environ.get("BENCH_UPLOADS", "4"))
MOST = 50  # MiB


def test_memory_is_flat_in_rounds(tmp_path: Path) -> None:
    print(f"\n{machine()}\n{UPLOADS} uploads of 4 MiB in a round; MiB at most\n")
    print("| | " + " | ".join(f"{rounds} rounds" for rounds in ROUNDS) + " |")
    print("|---" * (1 + len(ROUNDS)) + "|")
    for what in ("train", "server-reconstruct"):
        peaks = [peak(what, tmp_path / str(rounds), rounds) for rounds in ROUNDS]
        print(f"| {what} | " + " | ".join(f"{one:.0f}" for one in peaks) + " |")
        assert peaks[-1] < peaks[0] + MOST


def peak(what: str, folder: Path, rounds: int) -> float:
    """Measure in a process of its own."""
    size = "--rounds", str(rounds), "--uploads", str(UPLOADS)
    printed = in_own_process("long_run", what, str(folder), *size)
    return float(json.loads(printed.splitlines()[-1])["peak"])
