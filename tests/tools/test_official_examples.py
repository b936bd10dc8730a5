"""How an app of Flower is edited, and what the page of official examples says of it."""

import ast
import logging
import re
from pathlib import Path

import numpy as np
import pytest

from privaudit_tools.official_examples import (
    APPS,
    NOT,
    Drawn,
    Row,
    Warned,
    changed_lines,
    edited,
    page,
)
from tests.places import ROOT

SERVER = '''"""A server."""

from flwr.serverapp import ServerApp

app = ServerApp()


def other(grid):
    return grid


@app.main()
def main(grid, context):
    """Train."""
    result = start(grid)
    if result:
        print(result)


def last():
    pass
'''


@pytest.mark.parametrize(
    ("made", "becomes"),
    [
        ("ClientApp()", "ClientApp(mods=[name_partition])"),
        ("ClientApp(client_fn)", "ClientApp(client_fn, mods=[name_partition])"),
        (
            "ClientApp(client_fn=one, mods=[first])",
            "ClientApp(client_fn=one, mods=[name_partition, first])",
        ),
        ("ClientApp(\n    mods=[\n        first,\n    ],\n)", None),
    ],
)
def test_an_app_is_edited_as_a_user_edits_it(made: str, becomes: str | None) -> None:
    before = f"from flwr.clientapp import ClientApp\n\napp = {made}\n"
    client, server = edited(before, SERVER, Path("run"), Path("ledger.npz"))
    first, second, *_ = client.splitlines()
    assert first == "from flwr.clientapp import ClientApp"
    assert second == "from privaudit.recording.flower import name_partition"
    if becomes is not None:
        assert client.endswith(f"app = {becomes}\n")
    call = ast.parse(client).body[-1]
    assert isinstance(call, ast.Assign)
    assert isinstance(call.value, ast.Call)
    (mods,) = (one.value for one in call.value.keywords if one.arg == "mods")
    assert isinstance(mods, ast.List)
    assert ast.unparse(mods.elts[0]) == "name_partition"
    (main,) = (one for one in ast.parse(server).body if "main" in ast.unparse(one))
    assert isinstance(main, ast.FunctionDef)
    begin, *_, end = main.body[1:]  # behind the docstring
    recording = "grid = RecordingGrid(grid, 'run', ledger='ledger.npz')"
    assert (ast.unparse(begin), ast.unparse(end)) == (recording, "grid.close()")
    assert changed_lines(before, client) == 2
    assert changed_lines(SERVER, server) == 3


def test_lines_are_counted_in_the_difference() -> None:
    assert changed_lines("a\nb\n", "a\nb\n") == 0
    assert changed_lines("a\nb\n", "a\nc\n\nd\n") == 2


def test_a_client_that_has_no_such_form_is_no_app() -> None:
    with pytest.raises(ValueError, match="unpack"):
        edited("app = make()\n", SERVER, Path("run"), Path("ledger.npz"))


def test_warnings_are_kept_once_and_nothing_less_is() -> None:
    warned, log = Warned(), logging.getLogger("privaudit.recording")
    with warned.listening():
        for text in ("one", "two", "one"):
            log.warning(text)
        log.info("three")
    log.warning("four")
    assert list(warned.said) == ["one", "two"]


def test_drawn_texts_are_those_of_their_tokens() -> None:
    drawn = Drawn.texts(30)
    assert drawn.inputs.shape == (30, 14)
    assert len(drawn.columns["text"]) == len(drawn.labels) == 30
    assert len({*drawn.columns["text"]}) == 30
    assert set(np.unique(drawn.labels)) == {0, 1}


def test_a_row_has_a_cell_for_each_column() -> None:
    row = str(Row(APPS[1], 5, (12.4, 3.0), "0.9 [0.8, 1], n = 3 + 4, leaks", ["one"]))
    assert row.startswith("| quickstart-pytorch | 5 | `local-epochs=")
    assert row.endswith("| 12 + 3 | 0.9 [0.8, 1], n = 3 + 4, leaks | one |")
    *_, head, line, first, _, _, _ = page([row], "1a2b of today").splitlines()
    assert first == row
    assert head.count("|") == line.count("|") == row.count("|") == 7


def test_the_page_that_is_there_has_every_app_and_its_form() -> None:
    """A row for each; an AUROC has interval and n, and what has none says why."""
    text = (ROOT / "docs" / "official-examples.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    cells = {line.split("|")[1].strip(): line.split("|") for line in lines}
    names = [app.path for app in APPS] + list(NOT)
    assert list(cells) == [name.removeprefix("examples/") for name in names]
    attacked = [one for one in cells.values() if "`: 0." in one[5] or "`: 1" in one[5]]
    assert len(attacked) >= 6
    for one in attacked:
        assert int(one[2]) == 5
        assert all(said in one[5] for said in ("[", "], n = ", " + "))
    for one in cells.values():
        assert one in attacked or "not run: " in one[5] or "not attacked: " in one[5]
    assert re.search(r"Flower's, at [0-9a-f]{7,} of 20\d\d-\d\d-\d\d, ", text)
