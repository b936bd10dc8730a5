from pathlib import Path

import pytest

from privaudit.cli.main import run
from privaudit_tools.tables.matrix import BEGIN, END, MATRIX_PAGE, PUBLISHED
from privaudit_tools.tables.stored import read_stored
from tests.conftest import Cli
from tests.places import ROOT
from tests.privaudit.cli.test_json import valid

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


def test_json_is_of_its_schema(tmp_path: Path, cli: Cli) -> None:
    """A plan that is valid, a table, and the matrix, printed and in pages."""
    plan = tmp_path / "two.toml"
    plan.write_text(TWO)
    words = ("table", plan, "--columns", "here", "--runs", tmp_path / "runs")
    (checked,) = valid(cli, *words, "--check")
    assert (checked["plan"], checked["runs"]) == (str(plan), 1)
    assert checked["seconds"] > 0
    (found,) = valid(cli, *words)
    assert (found["runs"], found["failed"]) == (1, 0)
    stored = read_stored(Path(found["path"]))
    assert {c["mean"] for c in found["cells"]} == {
        cell.mean for cell in stored.cells.values()
    }
    published = (
        'items = [{ paper = "Ours", name = "table 1", shows = "two data sets" }]'
    )
    (tmp_path / "plans" / "results").mkdir(parents=True)
    (tmp_path / "plans" / PUBLISHED).write_text(published)
    (tmp_path / "plans" / "two.toml").write_text(f'reproduces = ["Ours table 1"]{TWO}')
    matrix = ("table", tmp_path / "plans", "--matrix")
    unknown = "not run"
    row = {"published": "Ours table 1", "plans": ["two.toml"], "answer": unknown}
    assert valid(cli, *matrix) == [{"rows": [row], "pages": []}]
    (tmp_path / MATRIX_PAGE).write_text(f"{BEGIN}\n{END}\n")
    pages = [str(tmp_path / MATRIX_PAGE)]
    assert valid(cli, *matrix, "--into", tmp_path) == [{"rows": [row], "pages": pages}]


def test_the_matrix_trains_nothing_and_goes_into_pages(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = table(["--into", str(tmp_path), "--check"], capsys, monkeypatch)
    assert said.startswith("2 ")
    assert "Add --matrix" in said
    said = table(["--matrix"], capsys, monkeypatch)
    assert "say nothing to it" in said
    monkeypatch.setattr("sys.argv", ["privaudit", "table", str(PLAN), "--matrix"])
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 2
    assert "is no folder" in capsys.readouterr().err


def test_a_folder_without_matrix_is_no_plan(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["privaudit", "table", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is a folder, and a plan is a TOML file" in said
    assert "or add --matrix, which reads a folder" in said


TWO = """
title = "Two data sets"
seeds = [1]
fields = { clients = 2, rounds = 1, shots = 4, tested = 40 }
rows = [{ label = "PromptFL", trainer = "promptfl", settings = { epochs = 1 } }]

[[columns]]
label = "here"
fields = { dataset = "digits" }

[[columns]]
label = "pets"
fields = { dataset = "oxford-pets", data = "$SETS/pets" }
"""


def test_a_piece_needs_the_data_of_its_own_cells_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = tmp_path / "two.toml"
    plan.write_text(TWO)
    monkeypatch.setenv("SETS", str(tmp_path))

    def said(*arguments: str) -> str:
        asked = ["privaudit", "table", str(plan), "--runs", str(tmp_path / "runs")]
        monkeypatch.setattr("sys.argv", [*asked, *arguments])
        with pytest.raises(SystemExit) as left:
            run()
        printed = capsys.readouterr()
        return " ".join(f"{left.value.code} {printed.out}{printed.err}".split())

    missing = f"2 privaudit: The plan needs what is not there: {tmp_path}/pets (data)."
    for piece in ((), ("--columns", "pets")):
        assert missing in said("--check", *piece)
        assert missing in said(*piece)
    here = "--columns", "here"
    assert "1 run, which is valid." in said("--check", *here)
    assert said(*here).startswith("0 # Two data sets")
    (tmp_path / "pets").mkdir()
    assert "There is no split_zhou_OxfordPets.json" in said("--check")
    assert "1 run, which is valid." in said("--check", *here)
