from pathlib import Path

import pytest

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


FIELDS = [part for field in SMALL for part in ("--field", field)]


def test_a_plan_is_checked_and_run_with_other_fields(tmp_path: Path, cli: Cli) -> None:
    small = ("table", PLAN, *FIELDS)
    assert "12 runs, all of them valid." in cli.done(*small, "--check")
    out = ("--seeds", "4", "--set", "epochs=1", "--runs", tmp_path)
    said = cli.done(*small, *out)
    assert said.startswith("# pFedMoAP's table 7")
    assert "**Ran on** `tiny-clip` with `digits`; 1 seed (4)." in said
    assert "in brackets: the paper's" in said
    assert (tmp_path / "tables" / "pfedmoap-table-7.json").exists()
    said = cli.refused(*small, "--set", "epoch=1", "--check")
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((PLAN, "--into", ROOT, "--check"), "Add --matrix"),
        ((PLAN, *FIELDS, "--matrix"), "say nothing to it"),
        ((PLAN, "--matrix"), "is no folder"),
        ((ROOT,), "is a folder, and a plan is a TOML file"),
        ((ROOT,), "or add --matrix, which reads a folder"),
    ],
)
def test_the_matrix_trains_nothing_and_is_of_a_folder(
    words: tuple[object, ...], says: str, cli: Cli
) -> None:
    assert says in cli.refused("table", *words)


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
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "two.toml"
    plan.write_text(TWO)
    monkeypatch.setenv("SETS", str(tmp_path))
    words = ("table", plan, "--runs", tmp_path / "runs")
    missing = f"privaudit: The plan needs what is not there: {tmp_path}/pets (data)."
    for piece in ((), ("--columns", "pets")):
        assert missing in cli.refused(*words, "--check", *piece)
        assert missing in cli.refused(*words, *piece)
    here = "--columns", "here"
    assert "1 run, which is valid." in cli.done(*words, "--check", *here)
    assert cli.done(*words, *here).startswith("# Two data sets")
    (tmp_path / "pets").mkdir()
    said = cli.refused(*words, "--check")
    assert "There is no split_zhou_OxfordPets.json" in said
    assert "1 run, which is valid." in cli.done(*words, "--check", *here)
