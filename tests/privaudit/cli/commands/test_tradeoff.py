import json
from pathlib import Path
from typing import Any

import pytest

from privaudit.evaluation.tradeoff.cells import SweepPoint
from privaudit.evaluation.tradeoff.result import Tradeoff, judge_sweep
from privaudit.statistics.estimate import Estimate
from tests.conftest import Cli


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.01, value + 0.01, (100,), "")


def result() -> Tradeoff:
    return judge_sweep(
        [
            SweepPoint(
                "zero-shot", None, seed, estimate(0.5), estimate(0.5 + seed / 1000),
                estimate(0.8), None, estimate(0.0), None, "", "lira",
                "accuracy",
            )
            for seed in range(3)
        ]
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the library is called with."""
    found: dict[str, Any] = {}

    def sweep(**entries: Any) -> Tradeoff:
        found.update(entries)
        return result()

    monkeypatch.setattr("privaudit.evaluation.tradeoff.sweep.sweep", sweep)
    monkeypatch.setattr(
        "privaudit.report.galleries.sweep.write_sweep",
        lambda _, out: found.update(out=out),
    )
    return found


def test_flags_become_entries_of_a_plan(asked: dict[str, Any], cli: Cli) -> None:
    code, _, _ = cli(
        "tradeoff", "--trainers", "promptfl,dp-fpl", "--vary", "rank=2,4", "--vary",
        "shots=none,5", "--report-seeds", "20,21", "--attack", "lira", "--clients",
        "all", "--set", "noise_at=client",
    )  # fmt: skip
    assert (code, asked["trainers"]) == (0, ["promptfl", "dp-fpl"])
    assert asked["vary"] == {"rank": ["2", "4"], "shots": [None, "5"]}
    assert (asked["report_seeds"], asked["attack"]) == ([20, 21], "lira")
    assert (asked["clients"], asked["settings"]) == ("all", {"noise_at": "client"})
    assert "epsilons" not in asked  # the plan's own default


def test_flags_win_over_the_file_name_by_name(
    asked: dict[str, Any], tmp_path: Path, cli: Cli
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'trainers = ["dp-fpl"]\nseeds = [1, 2]\n[fields]\nclients = 3\nrounds = 5\n'
    )
    cli("tradeoff", "--plan", path, "--seeds", "7,8", "--field", "rounds=2")
    assert (asked["trainers"], asked["seeds"]) == (["dp-fpl"], [7, 8])
    assert asked["fields"] == {"clients": 3, "rounds": "2"}


def test_a_table_says_where_each_cell_stands(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = cli("tradeoff", "--trainers", "zero-shot")
    assert code == 0
    assert "not dominated by any, at level 5 %" in out
    assert "3 runs audited" in out


def test_json_is_printed_alone(asked: dict[str, Any], cli: Cli) -> None:
    code, out, _ = cli("tradeoff", "--json")
    assert code == 0
    read = json.loads(out)  # a line: the sweep here tells nothing
    assert read["event"] == "result"
    assert Path(read["path"]).name == "tradeoff"
    assert read["cells"][0]["mode"] == "zero-shot"
    assert asked["trainers"] == ("dp-fpl",)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--vary", "rank"], "'rank' sets nothing. Write NAME=VALUE"),
        (["--vary", "rank=2,,4"], "--vary rank 2,,4 holds ''"),
        (["--vary", "rank=2", "--vary", "rank=4"], "--vary rank was given twice"),
        (["--plan", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_slips_are_one_line(words: list[str], says: str, cli: Cli) -> None:
    code, _, err = cli("tradeoff", *words)
    assert code == 2
    assert says in err
