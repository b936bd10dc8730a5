"""The plans of docs/tables: of the papers' tables, ready to run."""

import re
from pathlib import Path

import pytest

from privaudit.tables.plan import read_plan
from privaudit.tables.schedule import schedule

PLANS = sorted((Path(__file__).parents[3] / "docs" / "tables").glob("*.toml"))


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a plan's variables stand for a folder, with whatever it names in it."""
    for name in ("PRIVAUDIT_DATA", "PRIVAUDIT_SURROGATES"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def test_there_are_plans() -> None:
    assert len(PLANS) >= 13


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_committed_plan_can_be_run(path: Path, somewhere: Path) -> None:
    for place in re.findall(r"\$PRIVAUDIT_\w+/([^\"]+)", path.read_text()):
        (somewhere / place).mkdir(parents=True, exist_ok=True)
    plan = read_plan(path)
    assert len(plan.seeds) == 3
    assert schedule(plan).runs


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_committed_plan_names_no_place_of_one_machine(path: Path) -> None:
    plan = read_plan(path)
    for name in ("data", "model"):
        place = str(plan.fields[name]).removeprefix("surrogate:")
        assert place.startswith("$PRIVAUDIT_")
    assert plan.source
    assert plan.notes
