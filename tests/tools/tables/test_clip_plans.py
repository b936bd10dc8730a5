"""The plans of docs/tables/clip: published tables on the published backbones."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from privaudit.datasets.sources import KNOWN_CLASSES
from privaudit_tools.tables.backbones import ran_on
from privaudit_tools.tables.overrides import overridden
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import TablePlan, read_plan
from privaudit_tools.tables.schedule import schedule
from privaudit_tools.tables.table import make_table
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
        name.startswith(("open_clip:", "vlm:/", "llava:/", "encoder:/"))
        for name in backbones
    )
    for name in backbones:
        short = name.partition(":")[2].rpartition("/")[2]
        assert short in ran_on(plan)


@pytest.mark.usefixtures("somewhere")
def test_figures_are_of_their_tables_runs() -> None:
    """What is printed twice is trained once."""

    def digests(name: str) -> set[str]:
        return {
            run.short_hash for run in schedule(read_plan(CLIP / f"{name}.toml")).runs
        }

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


IMAGES: dict[str, Any] = {
    "model": "tiny-clip",
    "checkpoint": None,
    "dataset": "digits",
    "data": None,
    "clients": 2,
    "rounds": 1,
    "measured_rounds": 1,
    "shots": 2,
    "tested": 8,
    "views": 1,
}
TEXTS = {name: IMAGES[name] for name in IMAGES.keys() - {"checkpoint", "views"}}
WRITING = TEXTS | {"model": "tiny-llava", "dataset": "scenes", "shots": 1, "tested": 2}
FAR = {"elsewhere.dataset": "scenes-far", "elsewhere.data": None}
FAMILIES = {"dp-fpl": IMAGES, "pfedmoap": IMAGES, "fedpt": TEXTS, "fedrand": WRITING}
"""Fields with which the plans of a paper run on a miniature."""
DOMAINS: dict[str, tuple[str, ...]] = {
    "domainnet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    "office-caltech10": ("amazon", "caltech", "dslr", "webcam"),
    "office-home": ("Art", "Clipart", "Product", "Real World"),
}
WHOLE = {"shots": None, "tested": None}  # classes of each domain are few enough
OTHERS: dict[str, dict[str, Any]] = {
    "fedpt-dhapa": {"clients": 3},  # it forms three clusters of them
    "fedpt-domains": {**IMAGES, "dataset": "office-home", "clients": 4, **WHOLE},
    "fedrand-table-2": FAR,
    **{
        f"pfedmoap-{name}": {"dataset": "domainnet", "clients": 6, **WHOLE}
        for name in ("table-3", "table-8", "figure-6")
    },
    "pfedmoap-table-4": {
        "dataset": "office-caltech10", "clients": 4, **WHOLE,
    },
}  # fmt: skip
ROWS = {
    "fedpt-ablations": "three tiers of machines",
    "fedpt-leaks": "FedPT, LoRA, masked sum",
    "fedpt-mechanisms": "FedPT, LoRA",
    "fedpt-settings": "FedPT, soft prompt",
    "fedrand-table-4": "FedRand (client)",
}
"""Rows of a paper's own method where the last one is another's."""
NOT_THERE = {"fedrand-table-1": "exact match"}
"""Metrics that the other column's data set has alone: ScienceQA's questions."""


def small_domains(dataset: str, folder: Path) -> str:
    """Write a data set of domains in small: 8 pictures of each class in each domain."""
    draws = np.random.default_rng(0)
    for domain in DOMAINS[dataset]:
        for label in KNOWN_CLASSES["domainnet-10"]:
            (place := folder / domain / label).mkdir(parents=True)
            for number in range(8):
                pixels = draws.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return str(folder)


def in_small(path: Path, folder: Path) -> TablePlan:
    """Return a plan of small runs, with settings of its own but five shadow models."""
    (family,) = (name for name in FAMILIES if path.stem.startswith(name))
    fields = FAMILIES[family] | OTHERS.get(path.stem, {})
    if fields["dataset"] in DOMAINS:
        fields["data"] = small_domains(fields["dataset"], folder / "data")
    plan = overridden(read_plan(path), {}, fields, [1])
    return plan.model_copy(update={"shadows": min(plan.shadows, 5), "attacked": 1})


@pytest.mark.usefixtures("few_scenes")
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_cell_of_each_plan_runs_on_a_miniature(path: Path, tmp_path: Path) -> None:
    """The last one of a row: of the paper's own method, with noise where it has any."""
    plan = in_small(path, tmp_path)
    label = ROWS.get(path.stem, plan.rows[-1].label)
    row, column = [cell for cell in plan.cells if cell[0].label == label][-1]
    piece = Piece(f"^{re.escape(row.label)}$", f"^{re.escape(column.name)}$")
    table = make_table(plan, folder=tmp_path / "runs", piece=piece).shown
    assert not table.failures
    for metric in plan.measured:
        cell = table.cell(row, column, metric, "last")
        assert cell
        if NOT_THERE.get(path.stem, metric + ".") not in metric:
            assert cell.mean is not None, metric
            assert math.isfinite(cell.mean.value), metric


def test_a_plan_that_ran_on_a_miniature_says_so() -> None:
    plan = overridden(read_plan(CLIP / "pfedmoap-table-7.toml"), {}, IMAGES, [5])
    assert len(schedule(plan).runs) == 4  # its columns are one data set then
    assert ran_on(plan) == "**Ran on** `tiny-clip` with `digits`; 1 seed (5)."
