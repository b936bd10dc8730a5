"""Lists tests by their margin: how far chance is from the bounds that they hold.

    python -m tests.margins [--count 20] [--below 4] [--kept FOLDER] [PATHS]

runs the tests in as many perturbations as asked for: the last bits of every product of
matrices, and the keys of runs without a seed (:mod:`tests.perturbed`). A comparison's
margin is how far its numbers are from its bound on average, on whichever side, in
standard deviations over the perturbations. After the first only the tests run again
that compare numbers or failed, and after a few those whose margin could be small. Exits
with 1 if a test failed or a margin is below what is asked for. Twenty perturbations
take hours: those that a folder keeps are not run again, so a command that was stopped
goes on with ``--kept``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privaudit.core.storage import write_json
from tests.places import ROOT

WORTH_ANOTHER_LOOK = {3: 25.0, 6: 12.0, 10: 8.0}
"""From so many perturbations on, the margin above which a test is not run again."""


@dataclass
class Found:
    """What perturbations showed: the gaps of each comparison, and what failed in each."""

    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, number: int, gaps: Mapping[str, float], failed: Iterable[str]
    ) -> None:
        """Add what one perturbation showed."""
        for place, gap in gaps.items():
            self.gaps[place].append(gap)
        for test in failed:
            self.failed[test].append(number)

    def margins(self) -> dict[str, float]:
        """Return each comparison's margin, of those that perturbations move."""
        return {
            place: float(abs(np.mean(gaps)) / np.std(gaps, ddof=1))
            for place, gaps in self.gaps.items()
            if len(gaps) > 1 and np.std(gaps) > 1e-12 * abs(np.mean(gaps))
        }

    def close(self, below: float) -> dict[str, float]:
        """Return the margins below a number, the smallest first."""
        found = {place: one for place, one in self.margins().items() if one < below}
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    def to_run_again(self, done: int) -> list[str]:
        """Return the tests that failed, or whose margin could be small or is not known."""
        if done < min(WORTH_ANOTHER_LOOK):
            compare = {place.rpartition(":")[0] for place in self.gaps}
            return sorted(compare | set(self.failed))
        worth = max(WORTH_ANOTHER_LOOK.values())
        for count, margin in WORTH_ANOTHER_LOOK.items():
            worth = margin if done >= count else worth
        close = {place.rpartition(":")[0] for place in self.close(worth)}
        return sorted(close | set(self.failed))


Perturbed = tuple[dict[str, float], list[str]]  # each comparison's gap; what failed


def perturbed(number: int, tests: Iterable[str], kept: Path | None) -> Perturbed:
    """Return what one perturbation showed, which may be kept from an earlier command."""
    file, wanted = kept and kept / f"{number}.json", list(tests)
    if file and file.exists():
        before = json.loads(file.read_text())
        if before["tests"] == wanted:  # else it says nothing of these
            return before["gaps"], before["failed"]
    gaps, failed = perturb(number, wanted)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"tests": wanted, "gaps": gaps, "failed": failed})
    return gaps, failed


def perturb(number: int, tests: Iterable[str]) -> Perturbed:
    """Run tests in one perturbation."""
    gaps: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "privaudit.core.portable_bits", sys.executable, "-m",
            "pytest", "-q", "-p", "tests.perturbed", "--numprocesses=auto", "--dist=loadfile",
            "--no-loadscope-reorder", "--tb=line", "-rf", *tests,
        ]  # fmt: skip
        given = {
            "TEST_PERTURBATION": str(number),
            "TEST_GAPS": str(Path(folder, "gaps")),
        }
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | given, capture_output=True, text=True
        )
        for path in Path(folder).iterdir():
            gaps |= json.loads(path.read_text())
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    print(f"perturbation {number}: {last}", flush=True)
    return gaps, failed


def printed(found: Found, below: float) -> str:
    """Return the list: what failed and in which perturbations, and the margins."""
    lines = [f"failed in {numbers}: {test}" for test, numbers in found.failed.items()]
    lines += [
        f"{margin:8.2f}  {place}  (n {len(g)}, gaps {min(g):.3g} to {max(g):.3g})"
        for place, margin in found.close(below).items()
        for g in [found.gaps[place]]
    ]
    moved = len(found.margins())
    return "\n".join([*lines, f"{len(found.gaps)} comparisons, {moved} of them move"])


def main() -> int:
    """Run the perturbations and print the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.margins")
    parser.add_argument("paths", nargs="*", help="Tests; all without them.")
    parser.add_argument("--count", type=int, default=20, help="How many perturbations.")
    parser.add_argument("--below", type=float, default=4.0, help="Margins to print.")
    parser.add_argument("--kept", type=Path, help="Folder of perturbations.")
    asked = parser.parse_args()
    found, tests = Found(), asked.paths
    for number in range(1, asked.count + 1):
        if number > 1:
            tests = found.to_run_again(number - 1)
            if not tests:
                break
        found.add(number, *perturbed(number, tests, asked.kept))
    print(printed(found, asked.below))
    return 1 if found.failed or found.close(asked.below) or not found.gaps else 0


if __name__ == "__main__":
    sys.exit(main())
