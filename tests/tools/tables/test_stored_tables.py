import json
import shutil
from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError
from privaudit_tools.tables.stored import read_stored
from privaudit_tools.tables.table import UtilityTable
from privaudit_tools.tables.utility_table import (
    fill_stored,
    stored_markdown,
    write_stored,
    write_utility_table,
)
from tests.conftest import Cli
from tests.places import RESULT_TABLES, ROOT
from tests.tools.tables.test_utility_table import PLAN, panels_of, table_of

TOML = """
title = "t"
seeds = [1]
[[rows]]
label = "PromptFL"
trainer = "promptfl"
[[columns]]
label = "none"
[[columns]]
label = "ε 0.4"
[paper.local.PromptFL]
none = "94.45±0.30"
"""
PAGE = "before\n<!-- stored: made -->\nold\n<!-- end of stored -->\nafter\n"


def filled(table: UtilityTable, folder: Path) -> str:
    """Return the page with a stored table in its place."""
    write_utility_table(table, folder / "results", "made")
    (folder / "made.toml").write_text(TOML)
    page = folder / "page.md"
    page.write_text(PAGE)
    assert fill_stored(page, folder)
    once = page.read_text()
    assert not fill_stored(page, folder)
    assert page.read_text() == once
    return once


def test_a_page_has_the_tables_that_it_names(tmp_path: Path) -> None:
    text = filled(table_of(metrics=["local"], across="ε", paper={}), tmp_path)
    head = "**Ran on** `tiny-clip` with `digits`; 3 seeds (1, 2, 3).\n\n*Accuracy on a"
    assert text.startswith(f"before\n<!-- stored: made -->\n\n{head} client's")
    assert text.endswith("|\n\n<!-- end of stored -->\nafter\n")
    assert "old" not in text
    assert "of the last 10 rounds; in brackets: the paper's*" in text
    assert "| ε | none | ε 0.4 |\n" in text
    assert "| PromptFL | 82.00 ± 1.00 (94.45±0.30) |  |" in text


def test_groups_of_like_columns_are_lines_of_one_table(tmp_path: Path) -> None:
    columns = [{"label": "1", "group": "A"}, {"label": "1", "group": "B"},
               {"label": "2", "group": "C"}]  # fmt: skip
    rows = PLAN["rows"][1:]
    table = table_of(columns=columns, rows=rows, paper={}, metrics=["local"])
    lines = "| A: DP-FPL | 82.00 ± 1.00 |\n| B: DP-FPL | 82.00 ± 1.00 |\n\n|  | 2 |"
    assert lines in filled(table, tmp_path)


def test_a_plan_with_panels_is_read_again(tmp_path: Path) -> None:
    write_utility_table(panels_of(), tmp_path, "made")
    text = stored_markdown(read_stored(tmp_path / "made.json"))
    paper = "; in brackets: the paper's"
    seeds = "last round"  # the only one that was measured
    assert text.startswith("**Ran on** ")
    assert f"\n\n*Server, {seeds}{paper}*\n\n|  | BLEU-1 |" in text
    assert "| FedAvg | 75.00 ± 0.00 | 110.00 ± 0.00 (111.08±0.76) |" in text
    assert f"*{seeds}*\n" in text


def test_a_head_says_of_how_many_rounds_the_means_are(tmp_path: Path) -> None:
    write_utility_table(table_of(metrics=["local"]), tmp_path, "made")
    stored = tmp_path / "made.json"
    content = json.loads(stored.read_text())
    for run in content["runs"]:
        run["averaged"] = 5
    stored.write_text(json.dumps(content))
    text = stored_markdown(read_stored(stored))
    assert "own classes, mean of the last 5 rounds" in text
    content["runs"] = [{**run, "rounds": 5} for run in content["runs"]]
    stored.write_text(json.dumps(content))
    assert "mean of all 5 rounds" in stored_markdown(read_stored(stored))


def test_the_stored_tables_of_the_results_are_current(tmp_path: Path) -> None:
    """privaudit table docs/tables --matrix --into docs/results/tables."""
    copy = tmp_path / "docs" / "results" / "tables"
    shutil.copytree(RESULT_TABLES, copy)
    assert write_stored(copy, ROOT / "docs" / "tables") == []


def test_a_stored_table_that_no_page_names_gets_one(tmp_path: Path) -> None:
    folder, pages = tmp_path / "plans", tmp_path / "pages"
    pages.mkdir()
    write_utility_table(table_of(metrics=["local"]), folder / "results", "made-1.5")
    notes = 'notes = ["Unlike things: of another data set.", "Else alike."]\n'
    (folder / "made-1.5.toml").write_text(notes + TOML)
    assert write_stored(pages, folder) == [pages / "made-1.5.md"]
    text = (pages / "made-1.5.md").read_text()
    head = "# t\n\n[Plan](../plans/made-1.5.toml) · [numbers](../plans/results/made-1.5.json)"
    assert text.startswith(f"{head}\n\n⚠ of another data set.\n\n<!-- stored")
    assert "82.00 ± 1.00" in text
    assert "Else alike" not in text
    assert write_stored(pages, folder) == []
    (pages / "made-1.5.md").write_text("by hand\n\n" + PAGE.replace("made", "made-1.5"))
    assert write_stored(pages, folder) == [pages / "made-1.5.md"]  # and no second page
    assert [page.name for page in pages.iterdir()] == ["made-1.5.md"]
    assert (pages / "made-1.5.md").read_text().startswith("by hand\n")
    for text, says in (("mine", "page without a place"), ("\xe9", "no text in UTF-8")):
        (pages / "made-1.5.md").write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=says):
            write_stored(pages, folder)
        assert (pages / "made-1.5.md").read_text(encoding="latin-1") == text


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_stored_table_is_drawn(tmp_path: Path, cli: Cli, ending: str) -> None:
    write_utility_table(table_of(), tmp_path, "made")
    picture = tmp_path / f"picture.{ending}"
    stored = tmp_path / "made.json"
    assert cli("figure", "table", stored, "--out", picture)[0] == 0
    if ending == "png":
        assert picture.read_bytes() == (tmp_path / "made.png").read_bytes()
    else:
        assert "<svg" in picture.read_text()


def test_no_table_and_a_picture_of_another_kind_are_refused(
    tmp_path: Path, cli: Cli
) -> None:
    code, _, err = cli("figure", "table")
    assert (code, "of 0 files" in err) == (2, True)
    write_utility_table(table_of(), tmp_path, "made")
    stored = tmp_path / "made.json"
    code, _, err = cli("figure", "table", stored, "--out", tmp_path / "a.gif")
    assert (code, "ends with .svg, .pdf or .png" in err) == (2, True)
    content = json.loads(stored.read_text())
    stored.write_text(json.dumps(content | {"cells": []}))
    code, _, err = cli("figure", "table", stored, "--out", tmp_path / "a.svg")
    assert (code, "holds no cell with a number" in err) == (2, True)
    assert err.count("\n") == 1
