"""The plans of docs/tables/clip: published tables on the published backbones."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from privaudit.evaluation.tables.backbones import ran_on
from privaudit.evaluation.tables.overrides import overridden
from privaudit.evaluation.tables.pieces import Piece
from privaudit.evaluation.tables.plan import read_plan
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
    table = make_table(plan, folder=tmp_path, piece=Piece("private")).shown
    assert not table.failures
    assert [row.label for row in table.plan.rows] == ["attention, private"]
    for row in table.plan.rows:
        cells = [table.cell(row, c, "local", "last") for c in plan.columns]
        assert all(cell and cell.mean and cell.paper for cell in cells)
    assert ran_on(plan) == "**Ran on** `tiny-clip` with `digits`; 1 seed (5)."


def four_domains(folder: Path) -> Path:
    """Write Office-Caltech10 in small: 2 classes of 12 pictures in each domain."""
    draws = np.random.default_rng(0)
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for label in ("bike", "mug"):
            (place := folder / domain / label).mkdir(parents=True)
            for number in range(12):
                pixels = draws.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


WRITING = {
    **{name: SMALL[name] for name in ("clients", "rounds", "measured_rounds")},
    "model": "tiny-llava",
    "dataset": "scenes",
    "data": None,
    "shots": 6,
    "tested": 2,
    "test_share": 0.05,
    "public_share": 0.05,
    "participation": 1.0,
}
ENCODER = {name: SMALL[name] for name in SMALL.keys() - {"checkpoint", "views"}}


@pytest.mark.parametrize(
    ("name", "row", "column", "settings", "fields", "metric"),
    [
        ("dp-fpl-table-7", "^without", "Caltech101: 1",
         {"mode": "published-code"}, SMALL, "neighbour"),
        ("dp-fpl-figure-3", "DP-FPL", "Caltech101: 0.1",
         {"mode": "published-code"}, SMALL, "client shadow success"),
        ("pfedmoap-table-4", "pFedMoAP", "", {"epochs": 1},
         {**SMALL, "dataset": "office-caltech10", "data": "domains", "clients": 4,
          "participation": 1.0, "public_share": 0.1, "shots": None}, "mix on dslr"),
        ("fedrand-table-1", "^FedRand", "MSCOCO", {}, WRITING, "server ROUGE-L"),
        ("fedpt-mechanisms", "^FedPT, soft", "10", {"epochs": 1}, ENCODER, "all"),
    ],
)  # fmt: skip
def test_a_cell_of_each_kind_of_plan_runs_on_a_miniature(
    name: str, row: str, column: str, settings: dict[str, Any],
    fields: dict[str, Any], metric: str, tmp_path: Path,
) -> None:  # fmt: skip
    if fields["data"]:
        fields = fields | {"data": str(four_domains(tmp_path / fields["data"]))}
    plan = overridden(read_plan(CLIP / f"{name}.toml"), settings, fields, [1])
    table = make_table(plan, folder=tmp_path / "runs", piece=Piece(row, column)).shown
    assert not table.failures
    for cell in (table.cell(*place, metric, "last") for place in table.plan.cells):
        assert cell is not None
        assert cell.mean is not None
