"""Why tests are skipped, and which target runs them: docs/skipped-tests.md says it.

A test that is skipped for another reason fails, and so does one that is skipped by the
very target that is there to run it (which sets TEST_TARGET).
"""

import os
import re
from collections import Counter
from collections.abc import Generator
from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.places import ROOT

PAGE = ROOT / "docs" / "skipped-tests.md"


class Row(NamedTuple):
    """A row of the page's table.

    Attributes:
        phrases: Each a part of the reasons that tests give.
        runs: The last cell but one, "`make test-ray`", or with a condition after it.
        target: The target that it names.
        passed: When this last passed, as YYYY-MM-DD, or why it did not.
    """

    phrases: tuple[str, ...]
    runs: str
    target: str
    passed: str


@cache
def rows() -> tuple[Row, ...]:
    """Return the table of the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [
        [c.strip() for c in line.split("|")[1:-1]] for line in lines if "|" in line
    ]
    return tuple(
        Row(tuple(re.findall("`([^`]+)`", given)), runs, _target(runs), passed)
        for _, given, _, runs, passed in cells[2:]
    )


def _target(runs: str) -> str:
    named = re.match(r"`make ([\w-]+)`", runs)
    assert named, f"{PAGE} names no target: {runs}"
    return named[1]


def row_of(reason: str) -> Row | None:
    """Return the row that a reason belongs to."""
    found = (row for row in rows() if any(one in reason for one in row.phrases))
    return next(found, None)


def complaint(reason: str, target: str | None) -> str | None:
    """Return what is wrong with a skip.

    Args:
        reason: As the test gives it.
        target: The target of make that runs, such as "test-ray"; None for no such.
    """
    row = row_of(reason)
    if row is None:
        return f"Skipped: {reason}. Add the reason to {PAGE.name}, and a target that runs it."
    if row.runs == f"`make {target}`":
        return f"Skipped: {reason}. make {target} is there to run it."
    return None


def _judge(report: Any) -> None:
    """Make a failure of a skip that should not be."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    wrong = complaint(str(said), os.environ.get("TEST_TARGET"))
    if wrong:
        report.outcome, report.longrepr = "failed", wrong


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Judge a test's skip."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Judge a module's skip."""
    report = yield
    _judge(report)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which targets run what was skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    found = (row_of(str(report.longrepr[2])) for report in skipped)
    for row, count in Counter(filter(None, found)).most_common():
        terminalreporter.write_line(
            f"skipped {count}: {row.runs} runs what '{row.phrases[0]}' (last passed: {row.passed})"
        )
