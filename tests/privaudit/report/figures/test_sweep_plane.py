import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from privaudit.evaluation.tradeoff.cells import SweepPoint, aggregate
from privaudit.evaluation.tradeoff.result import Tradeoff, judge_sweep
from privaudit.evaluation.tradeoff.selection_cost import SearchCost
from privaudit.report.figures.sweep_plane import tradeoff_plane
from privaudit.report.galleries.sweep import write_sweep
from tests.privaudit.report.galleries.test_sweep import exactly


def run_of(
    mode: str, epsilon: float | None, seed: int, leak: float, use: float
) -> SweepPoint:
    """Return a run whose luck depends on its seed and a little on its cell."""
    rng = np.random.default_rng([seed, len(mode), int(10 * (epsilon or 0))])
    leak, use = leak + rng.normal(0, 0.004), use + rng.normal(0, 0.004)
    scores = rng.normal(1, 1, 250), rng.normal(0, 1, 250)
    return SweepPoint(
        mode, epsilon, seed, exactly(0.55), exactly(leak), exactly(use), None,
        exactly(0.1), None, "", "lira", "accuracy", scores,
    )  # fmt: skip


CELLS = {
    ("promptfl", None): (0.70, 0.88),
    ("sound", None): (0.62, 0.87),
    ("sound", 8.0): (0.53, 0.86),
    ("sound", 1.0): (0.52, 0.70),
}


@pytest.fixture
def plane_points() -> list[SweepPoint]:
    return [
        run_of(mode, epsilon, seed, *means)
        for (mode, epsilon), means in CELLS.items()
        for seed in range(5)
    ]


@pytest.fixture
def weighed(plane_points: list[SweepPoint]) -> Tradeoff:
    return judge_sweep(plane_points)


def test_cells_worse_in_one_and_not_better_in_the_other_are_dominated(
    weighed: Tradeoff,
) -> None:
    """By hand: ε 8 leaks less than all before it, and is of more use than ε 1."""
    assert [cell.name for cell in weighed.not_dominated] == ["sound, ε 8"]
    assert weighed.standing(0) == "dominated by sound, ε 8"
    assert weighed.standing(2) == "not dominated by any, at level 5 %"


def test_the_remarks_say_by_how_much_and_what_a_choice_is(weighed: Tradeoff) -> None:
    text = " ".join(weighed.remarks())
    assert "promptfl, no ε is dominated by sound, ε 8 (p = " in text
    assert "after Holm): its leak is greater by 0.1" in text
    assert "Holm over all 24 pairs and ways" in text
    assert "looked at on seeds 0, 1, 2, 3, 4" in text
    assert "the best of 4, and too good on average" in text


def test_where_nothing_is_proved_the_search_has_no_epsilon_either(
    weighed: Tradeoff,
) -> None:
    whole = replace(weighed, cost=SearchCost(4, 20, 20, None, None))
    assert whole.remarks()[-1].startswith("No run has a proved ε for this adversary")


def test_what_is_reported_on_other_seeds_stands_apart(
    plane_points: list[SweepPoint], weighed: Tradeoff, tmp_path: Path
) -> None:
    fresh = [replace(p, seed=p.seed + 10) for p in plane_points if p.epsilon == 8.0]
    whole = replace(
        weighed, report_points=tuple(fresh), reported=tuple(aggregate(fresh))
    )
    page = write_sweep(whole, tmp_path).read_text()
    assert "On other seeds" in page
    text = (tmp_path / "sweep.md").read_text()
    assert "reported on seeds 10, 11, 12, 13, 14, which had no part in" in text
    assert "fewer than 5 seeds" not in text
    few = replace(whole, report_points=tuple(fresh[:2]))
    assert "fewer than 5 seeds" in " ".join(few.remarks())


def test_numbers_are_written_as_csv_and_json(weighed: Tradeoff, tmp_path: Path) -> None:
    write_sweep(weighed, tmp_path)
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mode"] for row in rows] == ["promptfl", "sound", "sound", "sound"]
    cell = weighed.cells[2]
    assert float(rows[2]["auroc"]) == cell.auroc.value
    assert float(rows[2]["local_low"]) == cell.local.low
    assert (rows[0]["epsilon"], rows[0]["neighbour"]) == ("", "")
    read = json.loads((tmp_path / "sweep.json").read_text())
    assert [c["dominated"] for c in read["cells"]] == [True, True, False, True]
    assert read["cells"][2]["tpr"]["n"] == [1250, 1250]
    assert "scores" not in read["points"][0]


def test_the_rate_at_one_percent_is_of_all_seeds_or_says_what_is_missing(
    plane_points: list[SweepPoint], weighed: Tradeoff, tmp_path: Path
) -> None:
    rate = weighed.cells[0].tpr
    assert rate is not None
    assert rate.n == (1250, 1250)
    write_sweep(judge_sweep([p for p in plane_points if p.seed < 3]), tmp_path)
    text = (tmp_path / "sweep.md").read_text()
    assert "unresolved: needs 1000 non-members, has 750" in text


def test_dominated_cells_are_hollow(weighed: Tradeoff) -> None:
    axes = tradeoff_plane(weighed).axes[0]
    faces = [
        bars.lines[0].get_markerfacecolor()
        for bars in axes.containers
        if isinstance(bars, ErrorbarContainer)
    ]
    assert [face == "white" for face in faces] == [True, True, False, True]
    assert {text.get_text() for text in axes.texts} == {"no ε", "ε 8", "ε 1"}
    assert axes.get_xlabel().startswith("Leakage: AUROC of lira")


def test_without_budgets_there_are_no_curves(
    plane_points: list[SweepPoint], tmp_path: Path
) -> None:
    write_sweep(judge_sweep([p for p in plane_points if p.epsilon is None]), tmp_path)
    assert (tmp_path / "plane.png").exists()
    assert not (tmp_path / "sweep.png").exists()
