from pathlib import Path

import pytest

from privaudit.cli.main import run
from tests.places import ROOT

PLAN = ROOT / "docs" / "tables" / "clip" / "pfedmoap-table-7.toml"
SMALL = [
    "model=tiny-clip", "checkpoint=none", "dataset=digits", "data=none", "views=1",
    "clients=2", "rounds=1", "shots=4", "tested=40",
]  # fmt: skip


def table(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    fields = [part for field in SMALL for part in ("--field", field)]
    monkeypatch.setattr(
        "sys.argv", ["privaudit", "table", str(PLAN), *fields, *arguments]
    )
    with pytest.raises(SystemExit) as left:
        run()
    printed = capsys.readouterr()
    return f"{left.value.code} {printed.out}{printed.err}"


def test_a_plan_is_checked_and_run_with_other_fields(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = table(["--check"], capsys, monkeypatch)
    assert "12 runs, all of them valid." in said
    out = ["--seeds", "4", "--set", "epochs=1", "--runs", str(tmp_path)]
    said = table(out, capsys, monkeypatch)
    assert said.startswith("0 # pFedMoAP's table 7")
    assert "**Ran on** `tiny-clip` with `digits`; 1 seed (4)." in said
    assert "in brackets: the paper's" in said
    assert (tmp_path / "tables" / "pfedmoap-table-7.json").exists()
    said = table(["--set", "epoch=1", "--check"], capsys, monkeypatch)
    assert said.startswith("2 ")
    assert "no row's trainer has that parameter" in said


def test_the_matrix_trains_nothing_and_goes_into_a_page(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = table(["--into", str(tmp_path / "page.md"), "--check"], capsys, monkeypatch)
    assert said.startswith("2 ")
    assert "Add --matrix" in said
    said = table(["--matrix"], capsys, monkeypatch)
    assert "say nothing to it" in said
    monkeypatch.setattr("sys.argv", ["privaudit", "table", str(PLAN), "--matrix"])
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 2
    assert "is no folder" in capsys.readouterr().err
