"""The plans of docs/tables/clip: published tables on the published backbones."""

import re
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.evaluation.tables.backbones import ran_on
from privaudit.evaluation.tables.overrides import overridden
from privaudit.evaluation.tables.plan import TablePlan, read_plan
from privaudit.evaluation.tables.schedule import schedule
from privaudit.evaluation.tables.table import make_table
from tests.places import ROOT

CLIP = ROOT / "docs" / "tables" / "clip"
PLANS = sorted(CLIP.glob("*.toml"))
PLACE = re.compile(r"\$(PRIVAUDIT_\w+)/([^\"]+)")


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put something in every place that a plan names."""
    for path in PLANS:
        for variable, place in PLACE.findall(path.read_text()):
            monkeypatch.setenv(variable, str(tmp_path))
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            if place.endswith(".pt"):
                (tmp_path / place).touch()
            else:
                (tmp_path / place).mkdir(exist_ok=True)
    return tmp_path


@pytest.mark.usefixtures("somewhere")
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_for_real_clip_can_be_run(path: Path) -> None:
    plan = read_plan(path)
    assert len(plan.seeds) >= 3
    assert plan.source
    assert plan.notes
    planned = schedule(plan)
    assert len(planned.runs) >= len(plan.seeds)
    backbones = {str(run.fields["model"]) for run in planned.runs}
    assert all(
        name.startswith(("open_clip:", "vlm:/", "encoder:/")) for name in backbones
    )
    for name in backbones:
        short = name.partition(":")[2].rpartition("/")[2]
        assert short in ran_on(plan)


@pytest.mark.usefixtures("somewhere")
def test_figures_are_of_their_tables_runs() -> None:
    """What is printed twice is trained once."""

    def digests(name: str) -> set[str]:
        return {run.digest for run in schedule(read_plan(CLIP / f"{name}.toml")).runs}

    assert digests("dp-fpl-table-2") == digests("dp-fpl-table-3")
    assert digests("dp-fpl-table-6") & digests("dp-fpl-figure-2")
    assert digests("pfedmoap-table-1") & digests("pfedmoap-table-7")
    assert digests("fedrand-figure-3") == digests("fedrand-table-2")


def test_without_residual_none_is_trained_and_none_is_released() -> None:
    """The paper tests what it trains: p_G + u v of a fresh factorisation."""
    rows = [
        (path.stem, row.settings)
        for path in (*PLANS, *CLIP.parent.glob("*.toml"))
        for row in read_plan(path).rows
        if row.label == "without residual"
    ]
    assert len(rows) >= 12
    for name, settings in rows:
        off = (settings["residual"], settings.get("release_residual"))
        assert off == (False, False), name


def test_each_number_of_dp_fpls_tables_stands_in_its_plan() -> None:
    """By hand: one of each table, and how many there are."""
    plan = read_plan(CLIP / "dp-fpl-table-2.toml")
    assert str(plan.printed("local", "FedOTP", "Oxford Pets: 0.2").text) == "65.97±0.89"  # type: ignore[union-attr]
    plan = read_plan(CLIP / "dp-fpl-table-11.toml")
    cell = plan.printed("neighbour", "with residual", "Oxford Flowers: 8")
    assert cell is not None
    assert cell.text == "42.31±1.85"
    plan = read_plan(CLIP / "pfedmoap-table-3.toml")
    cell = plan.printed("mix on quickdraw", "pFedMoAP", plan.columns[0].name)
    assert cell is not None
    assert cell.text == "37.16±0.34"
    counts = {
        f"dp-fpl-table-{n}": count
        for n, count in ((2, 96), (3, 96), (4, 48), (6, 64), (9, 64), (11, 64))
    }
    for name, count in counts.items():
        paper = read_plan(CLIP / f"{name}.toml").paper
        rows = [row for by in paper.values() for row in by.values()]
        assert sum(len(row) for row in rows if isinstance(row, dict)) == count


SMALL: dict[str, Any] = {
    "model": "tiny-clip",
    "checkpoint": None,
    "dataset": "digits",
    "data": None,
    "clients": 2,
    "rounds": 1,
    "shots": 4,
    "measured_rounds": 1,
    "tested": 60,
    "views": 1,
}


def test_a_plan_for_real_clip_runs_on_a_miniature(tmp_path: Path) -> None:
    """Table 7 of pFedMoAP, with other fields: all its columns are one data set then."""
    plan = overridden(
        read_plan(CLIP / "pfedmoap-table-7.toml"), {"epochs": 1}, SMALL, [5]
    )
    assert len(schedule(plan).runs) == 4
    table = make_table(plan, folder=tmp_path)
    assert not table.failures
    for row in plan.rows:
        cells = [table.cell(row, c, "local", "last") for c in plan.columns]
        assert all(cell and cell.mean and cell.paper for cell in cells)
    assert ran_on(plan) == "**Ran on** `tiny-clip` with `digits`; 1 seed (5)."


def plan_of(**changes: Any) -> TablePlan:
    asked = {
        "title": "t",
        "seeds": [1, 2],
        "settings": {"epochs": 5},
        "rows": [
            {"label": "a", "trainer": "coop", "fields": {"rounds": 5}},
            {"label": "b", "trainer": "zero-shot"},
        ],
        "columns": [
            {"label": "x", "settings": {"epochs": 2}, "only_for": ["a"]},
            {"label": "y", "fields": {"clients": 4}},
        ],
        "paper": {"local": {"a": {"x": "1.5"}}},
    }
    return TablePlan.model_validate(asked | changes)


def test_what_is_given_stands_over_rows_and_columns() -> None:
    changed = overridden(plan_of(), {"epochs": 1}, {"rounds": 2, "clients": 3}, [7])
    runs = schedule(changed).runs
    assert {run.fields["rounds"] for run in runs} == {2}
    assert {run.fields["clients"] for run in runs} == {3}
    assert {run.settings.get("epochs") for run in runs} == {1, None}
    assert changed.seeds == (7,)
    assert changed.paper == plan_of().paper
    assert overridden(plan_of(), {}, {}) == plan_of()


def test_seeds_and_trainers_are_no_fields() -> None:
    with pytest.raises(ConfigError, match="'seed' is no field here"):
        overridden(plan_of(), {}, {"seed": 3})
