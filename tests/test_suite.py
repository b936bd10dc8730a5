"""Helpers of the suite itself: skips, type checks, the budget, reference runs."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from privaudit.core.seeds import Stream
from privaudit.federation.batches import with_canaries
from tests import reference_runs
from tests.budget import Budget, count, main
from tests.places import ROOT
from tests.reference_runs import REFERENCES, STORED, differences
from tests.skips import complaint, row_of, rows
from tests.type_checks import EVERY, FIRST, jaxtyped_once

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


check = jaxtyped_once(typechecker=None)


@check
def added(one: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return one + other if len(one) > 1 else torch.zeros(2)


@check
@dataclass(frozen=True)
class Pair:
    one: Float[Tensor, " n"]
    other: Float[Tensor, " n"]


def test_axes_of_one_name_are_equally_long_in_each_call() -> None:
    for length in (2, 3):
        assert len(added(torch.zeros(length), torch.zeros(length))) == length
    with pytest.raises(TypeCheckError):
        added(torch.zeros(3), torch.zeros(1))
    with pytest.raises(TypeCheckError):
        Pair(torch.zeros(2), torch.zeros(3))


def test_what_is_returned_has_the_axes_of_what_was_given() -> None:
    with pytest.raises(TypeCheckError):
        added(torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("again", range(2))
def test_so_it_is_at_first_in_every_test_and_now_and_then_after(again: int) -> None:
    for _ in range(FIRST - 1):
        added(torch.zeros(2), torch.zeros(2))
    for _ in range(3):
        with pytest.raises(TypeCheckError):
            added(torch.zeros(3), torch.zeros(1))
        for _ in range(EVERY - 1):
            assert len(added(torch.zeros(3), torch.zeros(1))) == 3


def test_the_package_is_checked() -> None:
    with pytest.raises(TypeCheckError):
        Stream("a key")  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):
        with_canaries(torch.zeros(2), torch.zeros(2), None)  # type: ignore[arg-type]


def adder(offset: int) -> Callable[[int], int]:
    @check
    def plus(number: int) -> int:
        return number + offset if number else plus(1)

    return plus


def test_functions_defined_by_one_outer_one_are_counted_together() -> None:
    for number in range(FIRST):
        assert adder(number)(1) == number + 1
    with pytest.raises(TypeCheckError):
        [adder(0)(1.0) for _ in range(EVERY)]  # type: ignore[arg-type]


def test_an_inner_function_is_checked_and_encloses_its_own_values() -> None:
    one, ten = adder(1), adder(10)
    assert (one(1), ten(1), one(0), ten(0)) == (2, 11, 2, 11)
    for each in (one, ten):
        with pytest.raises(TypeCheckError):
            each("1")  # type: ignore[arg-type]
    assert (one(5), ten(5)) == (6, 15)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "privaudit/core/a.py": "1\n2\n3\n",
        "attacks/b.py": "1\n2\n",
        "tests/test_a.py": "1\n",
        "tests/tools/test_b.py": "1\n2\n3\n4\n",
        "tools/c.py": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "privaudit/attacks").symlink_to("../attacks")
    return tmp_path


def test_folders_are_counted_once(root: Path) -> None:
    assert count(root) == {
        "attacks": (2, 1),
        "privaudit/core": (3, 1),
        "tests": (1, 1),
        "tests/tools": (4, 1),
        "tools": (1, 1),
    }


@pytest.mark.parametrize("name", ["lines", "files", "tests"])
def test_one_more_than_the_budget_fails_and_is_named(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = {"lines": 5, "files": 2, "tests": 1}
    assert main(root, Budget(**exact)) == 0
    assert "In the wheel 5 lines in 2 files" in capsys.readouterr().out
    assert main(root, Budget(**exact | {name: exact[name] - 1})) == 1
    assert capsys.readouterr().err.startswith(f"{name}: {exact[name]} are above")


Stored = dict[str, object]


@pytest.fixture(scope="module")
def stored() -> Stored:
    return dict(json.loads(STORED.read_bytes()))


def test_each_run_has_its_scores_verdicts_gate_and_card(stored: Stored) -> None:
    for name, reference in REFERENCES.items():
        paths = [path for path in stored if path.startswith(f"{name}/")]
        for scenario in reference.scenarios or ["scores"]:
            assert any(path.startswith(f"{name}/{scenario}/parts/") for path in paths)
        for end in ("/scores", "/verdict", "/auroc"):
            assert any(path.endswith(end) for path in paths), name
        assert {f"{name}/gate/exit code", f"{name}/card/design/unit"} <= {*paths}
    kinds = {entry for path, entry in stored.items() if path.endswith("/verdict")}
    assert {"leaks", "no evidence", "underpowered"} <= kinds
    codes = {entry for path, entry in stored.items() if path.endswith("/exit code")}
    assert codes == {0, 1, 3}


def test_what_is_other_missing_or_new_is_named(stored: Stored) -> None:
    assert differences(stored, stored, list(REFERENCES)) == []
    other = dict(stored)
    gone, *_, spoilt = sorted(path for path in stored if path.startswith("promptfl/"))
    del other[gone]
    other |= {spoilt: "other", "promptfl/new": 1}
    named = [
        line.partition(": ")[0] for line in differences(stored, other, ["promptfl"])
    ]
    assert named == sorted([gone, spoilt, "promptfl/new"])
    assert differences(stored, other, ["recorded"]) == []


@pytest.mark.slow
def test_scores_have_the_stored_numbers_and_altered_ones_are_told(
    stored: Stored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "scores/scores/scores/auroc"
    altered = tmp_path / "altered.json"
    altered.write_text(json.dumps(stored | {path: [0.5]}))
    words = ["-m", "tests.reference_runs", "scores", "--stored", str(altered)]
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{path}: stored [0.5], found {stored[path]}\n" in done.stdout, done.stderr
    assert ", 1 differ" in done.stdout
    monkeypatch.setattr(reference_runs, "find", lambda *_: stored)
    assert reference_runs.main(["scores"]) == 0
    assert ", 0 differ" in capsys.readouterr().out
