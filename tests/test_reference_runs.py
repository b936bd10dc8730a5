"""What is stored of the reference runs is compared, and quick ones are made anew."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.reference_runs import REFERENCES, STORED, differences

Stored = dict[str, object]


@pytest.fixture(scope="module")
def stored() -> Stored:
    return dict(json.loads(STORED.read_bytes()))


def _compare(*asked: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.reference_runs", *asked]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )


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
    stored: Stored, tmp_path: Path
) -> None:
    done = _compare("scores")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 differ" in done.stdout
    path = "scores/scores/scores/auroc"
    altered = tmp_path / "altered.json"
    altered.write_text(json.dumps(stored | {path: [0.5]}))
    done = _compare("scores", "--stored", str(altered))
    assert done.returncode == 1
    assert f"{path}: stored [0.5], found" in done.stdout
