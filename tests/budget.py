"""``python -m tests.budget``: how much there is, by folder, and whether it is too much.

Counts lines and files of Python; ``.ci/words.py`` counts the pages. Tests of tools and labs
are not counted. Nothing else limits the size of a file or folder.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.places import ROOT

WHEEL = ("privaudit", "attacks", "trainers", "scenarios")
APART = ("tools", "labs")


@dataclass(frozen=True)
class Budget:
    """What there may be at most; who raises it says why in ``docs/decisions/``.

    Attributes:
        lines: Of Python in the wheel's folders.
        files: The same.
        tests: Lines of tests, but for those of tools and labs.
    """

    lines: int
    files: int
    tests: int


BUDGET = Budget(lines=88_000, files=382, tests=68_960)
"""``docs/decisions/0017-budget.md``; today's, rounded up: the goals are 82,000 and 61,000."""


def count(root: Path) -> Mapping[str, Sequence[int]]:
    """Return lines and files of Python by folder."""
    lines, files = Counter[str](), Counter[str]()
    for folder, path in _python(root):
        lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
        files[folder] += 1
    return {folder: (lines[folder], files[folder]) for folder in sorted(lines)}


def _python(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file of Python, and the folder that it counts for."""
    for top in (*WHEEL, "tests", *APART):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).parts
            if top == "privaudit" and set(parts) & set(WHEEL[1:]):
                continue  # a link to a folder beside
            if top == "tests" and parts[1] in APART:
                yield f"tests/{parts[1]}", path
            elif top == "privaudit":
                yield "/".join(parts[:2]) if len(parts) > 2 else top, path
            else:
                yield top, path


def over(counted: Mapping[str, Sequence[int]], budget: Budget) -> list[str]:
    """Return a line for each number that is above the budget."""
    found = totals(counted)
    return [
        f"{name}: {getattr(found, name):,} are above the budget of {allowed:,}"
        for name, allowed in vars(budget).items()
        if getattr(found, name) > allowed
    ]


def totals(counted: Mapping[str, Sequence[int]]) -> Budget:
    """Return what counts, in the budget's form."""
    wheel = [n for name, n in counted.items() if name.partition("/")[0] in WHEEL]
    lines, files = (sum(one[part] for one in wheel) for part in (0, 1))
    return Budget(lines, files, counted["tests"][0])


def main(root: Path = ROOT, budget: Budget = BUDGET) -> int:
    """Print the table, and return 1 where something is above the budget."""
    counted = count(root)
    for name, (size, files) in counted.items():
        print(f"{name:24} {size:>8,} lines {files:>5}")
    found = totals(counted)
    print(
        f"In the wheel {found.lines:,} lines in {found.files} files; tests {found.tests:,}."
    )
    lines = over(counted, budget)
    print("\n".join(lines), file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
