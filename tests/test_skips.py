"""docs/skipped-tests.md has every reason that a test may give, and a target for each."""

import ast
import re
from collections.abc import Iterator
from datetime import date

import pytest
import yaml  # type: ignore[import-untyped]

from tests.places import ROOT
from tests.skips import complaint, row_of, rows

TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M)) | {
    "quick", "test",
}  # fmt: skip
WEEKLY = ROOT / ".github" / "workflows" / "weekly.yml"


def written(node: ast.expr | None) -> str:
    """Return what a text says, without what a run fills in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(written, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else ""


def reasons() -> Iterator[str]:
    """Yield the reason of each skip that the tests contain."""
    for path in (ROOT / "tests").rglob("*.py"):
        if path.parent.name == "benchmarks":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            named = {k.arg: written(k.value) for k in node.keywords}
            if called in ("pytest.skip", "pytest.importorskip"):
                missing = f"could not import '{written(node.args[0])}'"
                stated = written(node.args[0]) if called == "pytest.skip" else missing
                yield named.get("reason", stated)
            elif called in ("pytest.mark.skipif", "pytest.mark.skip"):
                yield named["reason"]


def test_every_reason_is_in_the_table_and_no_row_is_left_over() -> None:
    found = set(reasons())
    assert {one for one in found if row_of(one) is None} == set()
    unused = {p for r in rows() for p in r.phrases if not any(p in f for f in found)}
    assert unused == set()


def test_each_row_names_a_target_and_when_it_last_passed() -> None:
    for row in rows():
        assert row.phrases
        assert row.target in TARGETS
        if not row.passed.startswith(("never here", "not yet")):
            assert date(2026, 11, 25) <= date.fromisoformat(row.passed)


def test_every_week_all_targets_run_for_which_a_rented_machine_has_what_it_takes() -> (
    None
):
    jobs = yaml.safe_load(WEEKLY.read_text())["jobs"]
    weekly = set(jobs["targets"]["strategy"]["matrix"]["target"])
    lacking = {"gpu", "test-references"}  # a device, and what is in no repository
    assert {row.target for row in rows()} - lacking - {"test"} <= weekly <= TARGETS


@pytest.mark.parametrize(
    ("reason", "target", "says"),
    [
        ("Skipped: nobody has time for this", None, "Add the reason"),
        ("Skipped: make test-ray installs it", "test-ray", "is there to run it"),
        ("Skipped: make test-ray installs it", "test-flower", None),
        ("Skipped: mounts, as root", "test-ray", None),  # on a condition
        ("Skipped: make test-ray installs it", None, None),
    ],
)
def test_skips_that_should_not_be_are_failures(
    reason: str, target: str | None, says: str | None
) -> None:
    said = complaint(reason, target)
    assert said is None if says is None else said is not None and says in said
