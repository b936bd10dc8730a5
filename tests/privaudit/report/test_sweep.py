import csv
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from privaudit.core.errors import ConfigError
from privaudit.evaluation.tradeoff.plan import SweepPlan
from privaudit.evaluation.tradeoff.result import (
    SearchCost,
    SweepPoint,
    Tradeoff,
    aggregate,
    judge_sweep,
)
from privaudit.report.sweep import epsilon_curves, tradeoff_plane, write_sweep
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit.statistics.roc import sign_turned
from tests.privaudit.made_audits import make_audit
from tests.privaudit.report.test_page import Page


def exactly(value: float) -> Estimate:
    return Estimate(value, value - 0.01, value + 0.01, (100,), "")


def found(
    mode: str, epsilon: float | None, seed: int, success: float = 0.5
) -> SweepPoint:
    return SweepPoint(
        mode=mode,
        epsilon=epsilon,
        seed=seed,
        success=exactly(success),
        auroc=exactly(0.6),
        local=exactly(0.8),
        neighbour=exactly(0.4),
        gain=exactly(0.1),
        certified=None if mode == "published-paper" else epsilon,
        guarantee="",
        attack="",
        metric="accuracy",
    )


@pytest.fixture
def points(rng: np.random.Generator) -> list[SweepPoint]:
    return [
        found(mode, epsilon, seed, float(rng.uniform(0.5, 0.6)))
        for seed in range(3)
        for mode in ("published-paper", "sound")
        for epsilon in (0.1, None, 8.0, 1.0)
    ]


def test_cells_hold_means_over_seeds(points: list[SweepPoint]) -> None:
    cells = aggregate(points)
    assert len(cells) == 8
    for cell in cells:
        own = [
            p.success.value
            for p in points
            if (p.mode, p.epsilon) == (cell.mode, cell.epsilon)
        ]
        assert cell.success == mean_with_t(own)
        assert cell.seeds == (0, 1, 2)


def test_cells_go_from_no_noise_to_the_most(points: list[SweepPoint]) -> None:
    cells = aggregate(points)[:4]
    assert [cell.epsilon for cell in cells] == [None, 8.0, 1.0, 0.1]


def test_a_seed_twice_in_a_cell_is_no_replicate() -> None:
    with pytest.raises(ConfigError, match="a copy is no replicate"):
        aggregate([found("sound", 1.0, 0), found("sound", 1.0, 0)])
    with pytest.raises(ConfigError, match="there are none"):
        aggregate([])


def test_one_uncertified_seed_leaves_its_cell_uncertified() -> None:
    cells = aggregate([found("sound", 1.0, 0), found("sound", None, 1)])
    assert [cell.certified for cell in cells] == [None, 1.0]


def test_a_sweep_is_written_as_picture_table_and_numbers(
    points: list[SweepPoint], tmp_path: Path
) -> None:
    page = write_sweep(judge_sweep(points), tmp_path / "sweep")
    ElementTree.parse(tmp_path / "sweep" / "sweep.svg")
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    read = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert (len(read["points"]), len(read["cells"])) == (24, 8)
    assert "| sound | 0.1 | 3 |" in (tmp_path / "sweep" / "sweep.md").read_text()
    assert "<svg" in page.read_text()


def test_the_lowest_success_is_called_the_lowest_of_so_many(
    points: list[SweepPoint], tmp_path: Path
) -> None:
    write_sweep(judge_sweep([*points, found("other", 1.0, 0, success=0.31)]), tmp_path)
    text = (tmp_path / "sweep.md").read_text()
    assert "0.310" in text
    assert "the lowest of 9 cells, picked afterwards" in text


def test_none_is_drawn_to_the_right_of_every_epsilon(points: list[SweepPoint]) -> None:
    axes = epsilon_curves(aggregate(points)).axes[-1]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["0.1", "1", "8", "none"]
    assert list(axes.get_xticks()) == sorted(axes.get_xticks())


def test_a_single_seed_has_no_interval_and_is_drawn_all_the_same(
    tmp_path: Path,
) -> None:
    write_sweep(judge_sweep([found("sound", 1.0, 0)]), tmp_path)
    assert "needs 2 replicates" in (tmp_path / "sweep.md").read_text()


def test_a_point_is_made_of_an_audit() -> None:
    audit = make_audit(epsilons=(8.0, 9.31))
    point = SweepPoint.of(audit, "sound", 8.0)
    assert (point.auroc, point.certified) == (audit.auroc, 9.31)
    assert point.success == audit.headline.success


def at_levels(levels: dict[tuple[str, float | None], float]) -> list[SweepPoint]:
    """Return three seeds of each mode and epsilon, at AUROC level + seed / 100."""
    return [
        replace(found(mode, epsilon, seed), auroc=exactly(level + seed / 100))
        for seed in range(3)
        for (mode, epsilon), level in levels.items()
    ]


def test_differences_are_to_the_same_mode_without_noise_paired_by_seed() -> None:
    """By hand: modes start at 0.6 and 0.8, and lose 0.1 and 0.2 by noise."""
    points = at_levels(
        {
            ("sound", None): 0.6,
            ("sound", 1.0): 0.5,
            ("published-paper", None): 0.8,
            ("published-paper", 1.0): 0.6,
        }
    )
    cells = aggregate(points)
    assert [cell.reference for cell in cells] == [
        None, ("sound", None), None, ("published-paper", None),
    ]  # fmt: skip
    changes = [cell.change for cell in cells if cell.change]
    assert [change.value for change in changes] == pytest.approx([-0.1, -0.2])
    assert changes[0].high < -0.09
    assert {change.confidence for change in changes} == {0.975}  # Bonferroni, of two


def test_a_mode_without_a_run_without_noise_is_compared_with_the_first_row() -> None:
    points = at_levels({("sound", 8.0): 0.7, ("sound", 1.0): 0.5, ("other", 1.0): 0.6})
    cells = aggregate(points)
    assert [cell.reference for cell in cells] == [None, ("sound", 8.0), ("sound", 8.0)]
    assert cells[2].change is not None
    assert cells[2].change.value == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("levels", "title", "remark"),
    [
        (
            {("sound", None): 0.6, ("sound", 1.0): 0.5},
            "| AUROC less that without noise |",
            "of sound to the same mode without noise. They are paired by seed",
        ),
        (
            {("sound", 8.0): 0.6, ("sound", 1.0): 0.5},
            "| AUROC less the first row's |",
            "of sound to the first row, sound at ε 8. They are paired by seed",
        ),
        (
            {("sound", None): 0.6, ("sound", 1.0): 0.5, ("other", 1.0): 0.5},
            "| AUROC less the reference's |",
            "mode without noise; of other to the first row, sound at ε none. They are",
        ),
    ],
)
def test_a_table_says_what_its_differences_are_to(
    levels: dict[tuple[str, float | None], float],
    title: str,
    remark: str,
    tmp_path: Path,
) -> None:
    page = write_sweep(judge_sweep(at_levels(levels)), tmp_path)
    text = (tmp_path / "sweep.md").read_text()
    assert title in text
    assert remark in text
    assert "Bonferroni" in page.read_text()


def test_the_run_without_noise_is_a_point_of_its_own_modes_curve(
    points: list[SweepPoint],
) -> None:
    axes = epsilon_curves(aggregate(points)).axes[0]
    curves = {
        str(bars.get_label()): len(np.asarray(bars.lines[0].get_xdata()))
        for bars in axes.containers
        if isinstance(bars, ErrorbarContainer)
    }
    assert curves == {"published-paper": 4, "sound": 4}


def test_a_certified_epsilon_stands_with_unit_adjacency_and_delta(
    tmp_path: Path,
) -> None:
    audit = make_audit(epsilons=(8.0, 9.31))
    write_sweep(judge_sweep([SweepPoint.of(audit, "sound", 8.0)]), tmp_path)
    sentence = "for one record (neighbours: add/remove-one) at δ = 1e-5."
    assert sentence in (tmp_path / "sweep.md").read_text()


def test_differences_can_all_be_to_the_first_row() -> None:
    points = [
        found(mode, epsilon, seed)
        for mode, epsilon in (("promptfl", None), ("sound", None), ("sound", 1.0))
        for seed in range(3)
    ]
    cells = aggregate(points, against_first=True)
    assert [cell.reference for cell in cells] == [
        None,
        ("promptfl", None),
        ("promptfl", None),
    ]


def test_the_page_says_first_what_was_decided(
    points: list[SweepPoint], tmp_path: Path
) -> None:
    alike = Page(write_sweep(judge_sweep(points), tmp_path).read_text()).words
    assert "None of 8 settings is dominated on these seeds" in alike
    alone = write_sweep(judge_sweep([found("sound", 1.0, 0)]), tmp_path).read_text()
    assert "One setting was tried" in alone
    worse = [
        replace(found("loud", 1.0, seed), auroc=exactly(0.9 + 0.001 * seed))
        for seed in range(3)
    ]
    fine = [found("fine", 1.0, seed) for seed in range(3)]
    page = Page(write_sweep(judge_sweep([*worse, *fine]), tmp_path).read_text()).words
    assert "1 of 2 settings are dominated: another leaks less" in page
    assert "Not dominated: fine, ε 1." in page


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


def test_what_to_take_for_little_utility_is_said_with_its_interval(
    tmp_path: Path,
) -> None:
    luck = np.random.default_rng(2).normal(0, 0.01, (3, 6, 2))
    means = [("promptfl", 0.62, 0.88), ("dp-fpl", 0.52, 0.87), ("zero-shot", 0.5, 0.7)]
    points = [
        replace(
            found(mode, None, seed),
            auroc=exactly(leak + luck[place, seed, 0]),
            local=exactly(use + luck[place, seed, 1]),
        )
        for place, (mode, leak, use) in enumerate(means)
        for seed in range(6)
    ]
    made = judge_sweep(points)
    assert "take dp-fpl, no ε: AUROC falls by 0.1" in made.bargain
    assert "for all 2 settings together" in made.bargain
    assert made.remarks()[0] == made.bargain
    looks = judge_sweep(points, SweepPlan(seeds=tuple(range(6)), until_decided=True))
    assert "(97.5 %, for all 2" in looks.bargain  # a look has half of the error
    assert looks.changes()[0].leak.high > made.changes()[0].leak.high
    (dp, zero) = made.changes()
    assert dp.leak.high < -0.05
    assert zero.utility.high < -0.05
    write_sweep(made, tmp_path)
    assert (tmp_path / "change.png").exists()
    assert "95&nbsp;% ellipses" in (tmp_path / "sweep.html").read_text()
    same = judge_sweep([p for p in points if p.mode != "dp-fpl"])
    assert same.bargain.startswith("No setting is shown to leak less than promptfl")
    lower = [replace(p, auroc=sign_turned(p.auroc)) for p in points[:6]]
    turned = judge_sweep([*lower, *points[6:]])
    assert turned.bargain == made.bargain
    assert turned.front.not_dominated == made.front.not_dominated
    assert [cell.turned for cell in turned.cells] == [True, False, False]
    assert "lower scores in promptfl, no ε: AUROCs are" in turned.remarks()[1]


def test_an_undecided_cell_says_how_many_more_seeds_decide() -> None:
    luck = np.random.default_rng(2).normal(0, 0.02, (2, 3))
    points = [
        replace(found(mode, None, seed), auroc=exactly(leak + luck[place, seed]))
        for place, (mode, leak) in enumerate([("promptfl", 0.62), ("dp-fpl", 0.51)])
        for seed in range(3)
    ]
    assert "more seeds decide, if it is as it looks" in judge_sweep(points).standing(0)
