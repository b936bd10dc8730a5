import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.formatting import write_time
from privaudit.core.storage import write_json
from privaudit.evaluation.sweep_runs import SweepRun
from privaudit.execution.executors import HERE
from privaudit.runs.config import make_config
from privaudit.statistics.comparisons import holm
from privaudit.statistics.estimate import mean_with_t
from privaudit_tools.benchmarks import benchmark_stability
from privaudit_tools.costs import forecast
from privaudit_tools.costs.forecast import Cost
from privaudit_tools.equal_utility import benchmark as module
from privaudit_tools.equal_utility.benchmark import (
    BenchmarkResult,
    Seal,
    read_result,
    run_benchmark,
    seal_path,
)
from privaudit_tools.equal_utility.choosing import choose
from privaudit_tools.equal_utility.curve import standing
from privaudit_tools.equal_utility.document import as_html, as_markdown
from privaudit_tools.equal_utility.figure import plane
from privaudit_tools.equal_utility.judging import judge
from privaudit_tools.equal_utility.outcomes import Look, Question, RunRecord
from privaudit_tools.equal_utility.page import (
    _rank,
    blocks_of,
    conclusions,
    render_benchmark,
)
from privaudit_tools.equal_utility.plan import BenchmarkPlan
from privaudit_tools.serve.pages import ServedRuns
from tests.conftest import Cli
from tests.places import ROOT
from tests.privaudit.cli.test_json import valid

WEAKER = "rmia as server-aggregate"
TUNING, EVALUATION = [1, 2], [3, 4, 5, 6]
PLAN = BenchmarkPlan.model_validate(
    {
        "title": "Small",
        "tuning_seeds": TUNING,
        "evaluation_seeds": EVALUATION,
        "reference": {"label": "early stopping", "trainer": "promptfl", "stops": [1, 4]},
        "methods": [
            {"label": "none", "trainer": "zero-shot", "control": True},
            {
                "label": "good", "trainer": "prompt-fedper",
                "knob": "epochs", "values": [1, 2],
            },
            {"label": "same", "trainer": "promptfl"},
            {"label": "useless", "trainer": "coop"},
            {"label": "beyond", "trainer": "pfedmoap"},
        ],
    }
)  # fmt: skip
# Utility and the leak of "strong" by row and setting; of the curve also after round 1.
MEANS = {
    ("none", "as given"): (0.80, 0.5),
    ("good", "epochs 1"): (0.85, 0.50),
    ("good", "epochs 2"): (0.88, 0.68),
    ("same", "as given"): (0.85, 0.60),
    ("useless", "as given"): (0.75, 0.5),
    ("beyond", "as given"): (0.95, 0.65),
}


def look(rounds: int, utility: float, leak: float) -> Look:
    leaks, found = {"weak": 0.5, "strong": leak}, {"local": utility, "all": utility / 2}
    return Look(rounds=rounds, utility=found, leaks=leaks)


def made_up(row: str, setting: str, seed: int) -> RunRecord:
    """Return a run with little noise, other in each row and seed."""
    noise = 0.001 * ((7 * seed + len(row)) % 5 - 2)
    if row == "early stopping":
        looks = [look(1, 0.84, 0.58), look(4, 0.90, 0.70 + noise)]
    else:
        utility, leak = MEANS[row, setting]
        looks = [look(1, 0.8, 0.52), look(10, utility + noise, leak - noise)]
    return RunRecord(
        row=row, setting=setting, seed=seed, run=f"{row}-{seed}", looks=looks,
        certified={"server": 8.0, "released": None}, megabytes=0.5, seconds=2.0,
        unit="one client, replace-one", delta=1e-5,
    )  # fmt: skip


def all_runs(seeds: list[int]) -> list[RunRecord]:
    rows = [("early stopping", ""), *MEANS]
    return [made_up(row, setting, seed) for seed in seeds for row, setting in rows]


@pytest.fixture
def result() -> BenchmarkResult:
    choices = choose(PLAN, all_runs(TUNING))
    seal = Seal(on="2026-11-26T00:00:00+00:00", digest=PLAN.digest, choices=choices,
                evaluation_seeds=PLAN.evaluation_seeds)  # fmt: skip
    runs = all_runs(TUNING + EVALUATION)
    tpr = {"good": mean_with_t([0.1, 0.2, 0.3]).to_dict()}
    return BenchmarkResult.model_validate(
        {"plan": PLAN, "seal": seal, "runs": runs, "tpr": tpr}
    )


def test_tuning_seeds_choose_the_setting_and_the_strongest_attack() -> None:
    choices = choose(PLAN, all_runs(TUNING))
    by_row = {choice.row: choice for choice in choices.rows}
    assert by_row["good"].setting == "epochs 1"
    assert (by_row["good"].attack, by_row["good"].after) == ("strong", 1)  # 0.52 > 0.50
    assert (by_row["same"].attack, by_row["same"].after) == ("strong", 0)
    assert [(c.rounds, c.after) for c in choices.stops] == [(1, 1), (4, 4)]


def test_evaluation_seeds_choose_nothing() -> None:
    worse = [
        run.model_copy(update={"looks": [look(1, 0.1, 0.9), look(10, 0.1, 0.9)]})
        for run in all_runs(EVALUATION)
    ]
    assert choose(PLAN, all_runs(TUNING) + worse) == choose(PLAN, all_runs(TUNING))


def test_a_curve_without_a_run_is_refused() -> None:
    runs = [run for run in all_runs(TUNING) if run.row != "early stopping"]
    with pytest.raises(ConfigError, match="The curve cannot be drawn"):
        choose(PLAN, runs)


def test_a_row_that_no_attack_found_a_number_on_is_refused() -> None:
    blind = [look(1, 0.8, 0.5).model_copy(update={"leaks": {}})]
    runs = [
        run.model_copy(update={"looks": blind}) if run.row == "good" else run
        for run in all_runs(TUNING)
    ]
    with pytest.raises(ConfigError, match=r"No attack on 'good' .* `attacks` of"):
        choose(PLAN, runs)


def test_rows_stand_where_they_were_put(result: BenchmarkResult) -> None:
    """At 0.85 the curve is a sixth of the way from 0.58 to 0.70: 0.60."""
    judged = result.judged
    rows = {row.method.label: row for row in judged.rows}
    assert [row.method.label for row in judged.rows][-2:] == ["useless", "none"]
    good, same, beyond = (rows[name].standing for name in ("good", "same", "beyond"))
    assert good is not None
    assert same is not None
    assert beyond is not None
    assert good.distance.value == pytest.approx(0.08, abs=0.003)
    assert same.distance.value == pytest.approx(0.0, abs=0.003)
    assert beyond.where == "above"
    assert beyond.distance.value == pytest.approx(0.05, abs=0.003)
    p = rows["good"].p
    assert p is not None
    assert p < 0.01
    assert rows["useless"].p is None
    assert len(judged.separated) == 3
    none, *stops = judged.measured
    trained = [(row, row.standing) for row in judged.rows if row.standing]
    alone = [
        standing(row.choice.measured(row.runs, EVALUATION, "local"), none, stops)
        for row, _ in trained
    ]
    adjusted = holm([one.p_useful for one in alone])
    assert [found.p_useful for _, found in trained] == pytest.approx(adjusted)


def test_what_is_all_the_same_is_not_told_apart() -> None:
    given = all_runs(TUNING + EVALUATION)
    same = [run for run in given if run.row == "same"]
    runs = [run for run in given if run.row != "beyond"]
    runs += [run.model_copy(update={"row": "beyond"}) for run in same]
    tuned = [run for run in runs if run.seed in TUNING]
    separated = judge(PLAN, choose(PLAN, tuned), runs).separated
    assert frozenset(("same", "beyond")) not in separated
    assert frozenset(("same", "good")) in separated


def test_ranks_are_ranges_that_tests_leave_open(result: BenchmarkResult) -> None:
    """By hand: a is told from c, and b from neither."""
    judged = result.judged
    names = [row.method.label for row in judged.rows if row.p is not None]
    found = replace(judged, separated=frozenset({frozenset((names[0], names[2]))}))
    ranks = [_rank(found, row) for row in judged.rows]
    assert ranks == ["1 to 2", "1 to 3", "2 to 3", "", ""]


def test_fewer_seeds_than_three_are_refused_and_a_failed_row_is_left_out(
    result: BenchmarkResult,
) -> None:
    runs = all_runs([*TUNING, 3, 4])
    assert result.seal.choices is not None
    with pytest.raises(ConfigError, match="The curve takes 3 evaluation seeds"):
        judge(PLAN, result.seal.choices, runs)
    failed = [
        run.model_copy(update={"error": "boom"}) if run.row == "same" else run
        for run in result.runs
    ]
    found = judge(PLAN, result.seal.choices, failed)
    assert "same" not in {row.method.label for row in found.rows}


def test_the_page_of_the_documentation_is_that_of_its_result() -> None:
    """Else: the command that it begins with."""
    page = (ROOT / "docs" / "benchmark.md").read_text()
    (command,) = re.findall(r"^    (privaudit benchmark .+)$", page, re.M)
    stored = ROOT / command.split()[2]
    picture = f"benchmark/{stored.stem}.svg"
    assert page == page_of(read_result(stored), command, picture)
    assert (ROOT / "docs" / picture).is_file()


def page_of(result: BenchmarkResult, command: str = "", picture: str = "") -> str:
    return as_markdown("Benchmark", blocks_of(result, command, picture))


def test_the_page_says_what_follows_and_what_does_not(result: BenchmarkResult) -> None:
    text = page_of(result, "privaudit benchmark small.json --page p.md", "small.svg")
    assert "| good | epochs 1 |" in text
    assert (
        "- Train by good (epochs 1) rather than early stopping: at equal accuracy"
        in text
    )
    assert "- If all attacks have to be bounded, train by beyond (as given)" in text
    assert "- Leaks less than early stopping at equal utility: good; beyond." in text
    assert "| < 0.001 | 1 |" in text
    said, more = conclusions(result, result.judged)
    start = "leaks less than early stopping at equal utility, by "
    assert said.startswith(f"good (epochs 1) {start}0.0")
    assert more.startswith(f"beyond (as given) {start}at least 0.0")
    assert "Not told from early stopping, which is no proof of equality: same." in text
    assert "its end is a bound for: beyond." in text
    assert "| 8, -, -, - (one client, replace-one, δ 1e-5) |" in text
    assert "make these runs repeatable, not private." in text
    assert "so not ranked: useless." in text
    assert "0.200 [-0.048, 0.448]" in text
    assert "the attacks that tuning seeds chose" in text
    assert len(plane(result.judged).axes[0].containers) == 4


Made = dict[tuple[str, str, int], Question]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Make runs up, and collect which, with what was asked of each."""
    made: Made = {}

    def perform(_: Any, entries: Any) -> list[RunRecord]:
        asked = {(e.row, e.setting, e.run.fields["seed"]): e.question for e in entries}
        made.update(asked)
        return [made_up(*one) for one in asked]

    monkeypatch.setattr(module._Work, "perform", perform)
    monkeypatch.setattr(module, "_tpr", lambda *_: {})
    return made


def make(stored: Path, plan: BenchmarkPlan = PLAN) -> BenchmarkResult:
    return run_benchmark(
        plan, stored, folder=stored.parent, executor=HERE, progress=print
    )


def test_the_chosen_settings_alone_meet_evaluation_seeds(
    tmp_path: Path, work: Made
) -> None:
    stored = tmp_path / "small.json"
    found = make(stored)
    assert {one for one in work if one[0] == "good" and one[2] in EVALUATION} == {
        ("good", "epochs 1", seed) for seed in EVALUATION
    }
    assert read_result(stored) == found


def test_evaluation_seeds_meet_the_chosen_attacks_alone(
    tmp_path: Path, work: Made
) -> None:
    make(tmp_path / "small.json")
    assert not any(asked.chosen for (*_, seed), asked in work.items() if seed in TUNING)
    for seed in EVALUATION:
        assert work["good", "epochs 1", seed].chosen == ((1, "strong"),)
        stops = work["early stopping", "", seed].chosen
        assert stops == ((1, "strong"), (4, "strong"))


def test_a_look_has_the_attacks_that_were_chosen_for_it() -> None:
    chosen = ((1, "rmia"), (0, "lira"), (10, "entropy"))
    question = Question("server-reconstruct", 5, (1, 3), chosen)
    found = [[*question.attacks_after(rounds, 10).attacks] for rounds in (1, 3, 10)]
    assert found[:2] == [["rmia"], []]
    assert set(found[2]) == {"lira", "entropy"}
    weaker = Question("server-reconstruct", 5, (), ((0, WEAKER),)).attacks_after(9, 9)
    assert ([*weaker.attacks], weaker.dominates) == (["rmia"], ("server-aggregate",))
    named = Question("server-reconstruct", 5, (1,), attacks=("lira",))
    assert [[*named.attacks_after(n, 9).attacks] for n in (1, 9)] == [["lira"]] * 2
    everything = Question("server-reconstruct", 5, (1, 3)).attacks_after(3, 10)
    assert everything == find_scenario("server-reconstruct", 5)


def test_what_was_chosen_before_a_kill_stands(tmp_path: Path, work: Made) -> None:
    stored = tmp_path / "small.json"
    make(stored)
    path = seal_path(stored)
    seal = json.loads(path.read_text())
    seal["choices"]["rows"][1]["setting"] = "epochs 2"
    path.write_text(json.dumps(seal))
    work.clear()
    make(stored)
    assert ("good", "epochs 2", 3) in work
    assert ("good", "epochs 1", 3) not in work


def test_what_was_added_to_a_result_stays_when_its_plan_runs_again(
    tmp_path: Path, work: Made
) -> None:
    stored = tmp_path / "small.json"
    first = make(stored)
    added = {"forecast": Cost(runs=9, training=40.0, attacks=20.0), "beyond": ("good",)}
    write_json(stored, first.model_copy(update=added).model_dump(mode="json"))
    assert make(stored) == first.model_copy(update=added)
    assert read_result(stored).beyond == ("good",)


def test_a_missing_place_is_named_as_a_plan_changes_it(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"fields": {"data": str(tmp_path / "gone")}})
    with pytest.raises(MissingFileError, match="place with data = … in the plan"):
        make(tmp_path / "small.json", plan)


def test_another_plan_is_refused_where_one_was_sealed(
    tmp_path: Path, work: Made
) -> None:
    stored = tmp_path / "small.json"
    make(stored)
    stored.with_name("other.json").write_text("{}")  # somebody's, and no result
    work.clear()
    with pytest.raises(ConfigError, match="is not what `privaudit benchmark` writes"):
        make(stored.with_name("other.json"))
    assert not work
    other = PLAN.model_copy(update={"evaluation_seeds": (7, 8, 9)})
    with pytest.raises(ConfigError, match=r"was sealed on .* for another plan"):
        make(stored, other)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"plan": PLAN.model_copy(update={"evaluation_seeds": (3, 4, 5)})},
            "was sealed",
        ),
        (
            {"runs": [made_up("same", "as given", 99)]},
            r"does not name the seeds \[99\]",
        ),
        ({"runs": [RunRecord(row="same", setting="as given", seed=3)]}, "lacks a look"),
        (
            {"seal": Seal(on="", digest=PLAN.digest, evaluation_seeds=())},
            "not every stop",
        ),
    ],
)
def test_what_is_not_of_its_seal_or_lacks_numbers_is_no_result(
    tmp_path: Path, result: BenchmarkResult, changes: dict[str, Any], says: str
) -> None:
    stored = tmp_path / "small.json"
    stored.write_text(result.model_copy(update=changes).model_dump_json())
    with pytest.raises(ConfigError, match=says):
        read_result(stored)


def test_a_cost_has_the_dearest_setting_and_every_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round takes as many seconds as there are epochs; five shadows replay one."""

    def timed(run: SweepRun, _: str) -> tuple[float, bool]:
        return float(run.settings.get("epochs", 0)), False

    monkeypatch.setattr(forecast, "_timed", timed)
    fields = {"settings": {"epochs": 1}, "stops": (1, 2, 4)}
    changes = {"shadows": 5, "reference": PLAN.reference.model_copy(update=fields)}
    cost = module.cost_of(PLAN.model_copy(update=changes), print)
    curve, good = 2 + 4, 2 * (1 + 2) + 4 * 2  # epochs of both kinds of seeds
    rounds = make_config("prompt-fedper").rounds
    assert (cost.runs, cost.training) == (38, 4 * curve + rounds * good)
    assert cost.attacks == 5 * (3 * curve + 2 * good)


def text_of(page: Path, cli: Cli, *asked: Any) -> str:
    cli.done("benchmark", *asked, "--page", page)
    return page.read_text()


def test_a_page_is_made_of_a_result_alone(
    tmp_path: Path, cli: Cli, result: BenchmarkResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, page = tmp_path / "small.json", tmp_path / "page.md"
    stored.write_text(result.model_dump_json())
    (found,) = valid(cli, "benchmark", stored, "--page", page)
    assert found["rows"][0]["method"] == "good"
    assert "](small.svg)" in page.read_text()
    assert (tmp_path / "small.svg").exists()
    cli.done("benchmark", stored, "--page", page, "--method", "good")
    text = page.read_text()
    assert "# good" in text
    assert "| 3 | 0.848 |  | 0.52" in text
    assert "| epochs 2 | 0.88" in text
    said = cli.refused("benchmark", stored, "--page", page, "--method", "worse")
    assert "There is no row 'worse'" in said
    cost = Cost(7, 60.0, 120.0)
    monkeypatch.setattr(module, "cost_of", lambda _plan, _say: cost)
    assert "the forecast was" not in text_of(page, cli, stored)
    said = text_of(page, cli, stored, "--check")
    assert f"42 runs trained for {write_time(84.0)} by the wall clock" in said
    assert f"the forecast was {cost}." in said
    assert read_result(stored).forecast == cost
    for words, said in (
        (["--quick"], "say nothing to it"),
        (["--method", "good"], "given without --page"),
        (["--key", "k"], "given without --cards"),
        (["--runs", "memory://runs"], "reads a folder"),
    ):
        assert said in cli.refused("benchmark", stored, *words)
    stored.write_text("{}")
    code, _, said = cli("benchmark", stored)
    assert (code, "is not what `privaudit benchmark` writes" in said) == (2, True)


def test_the_page_as_html_says_the_same_and_escapes(result: BenchmarkResult) -> None:
    """By the same rows: each cell of the Markdown's table is one of the HTML's."""
    plan = result.plan.model_copy(update={"title": "<script>1</script>"})
    result = result.model_copy(update={"plan": plan})
    html = as_html(plan.title, blocks_of(result, "privaudit <b>", ""))
    assert "<script>1" not in html
    assert "<b>" not in html
    rows = [line for line in page_of(result).splitlines() if line.startswith("| ")]
    cells = [
        cell.strip(" *") for row in rows[2:] for cell in row.strip("| ").split(" | ")
    ]
    assert len(cells) > 50
    for cell in cells:
        assert str(escape(cell)) in html
    assert html.count("<svg") == 1


def test_serve_shows_a_benchmark_in_the_folder_of_runs(
    tmp_path: Path, cli: Cli, result: BenchmarkResult
) -> None:
    stored = tmp_path / "small.json"
    stored.write_text(result.model_dump_json())
    runs = tmp_path / "runs"
    runs.mkdir()
    cli.done("benchmark", stored, "--runs", runs)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "run.json").touch()
    assert "a run lies" in cli.refused("benchmark", stored, "--runs", tmp_path)
    served = ServedRuns(runs)
    assert served.sweeps() == ["small"]
    assert served.sweep("small") == render_benchmark(runs / "small" / "benchmark.json")
    with pytest.raises(MissingFileError, match=r"There is no .*other"):
        served.sweep("other")


def test_rows_that_hang_on_last_bits_are_found_and_said_on_the_page(
    tmp_path: Path,
    result: BenchmarkResult,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the second perturbation one row is a point worse, ten times its spread."""
    asked = []

    def perform(
        run: Any, row: str, setting: str, question: Question, folder: Path
    ) -> RunRecord:
        seed = run.fields["seed"]
        asked.append((seed, question.chosen))
        record = made_up(row, setting, seed)
        if (row, folder.name) != ("beyond", "2"):
            return record
        looks = [look(10, 0.94, record.at(0).leaks["strong"])]
        return record.model_copy(update={"looks": looks})

    monkeypatch.setattr(benchmark_stability, "perform", perform)
    stored = tmp_path / "small.json"
    stored.write_text(result.model_dump_json())
    words = ["benchmark_stability", str(stored), "--runs", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    benchmark_stability.main()
    printed = capsys.readouterr().out
    assert "| small | beyond | as given | 1, 2 | 1 of 2 | utility 1." in printed
    assert printed.count("| 1 of 2 |") == 1
    assert {seed for seed, _ in asked} == set(TUNING)
    assert all(len(chosen) == 1 for _, chosen in asked)
    noted = read_result(stored)
    assert noted.beyond == ("beyond",)
    said = as_markdown(noted.plan.title, blocks_of(noted, "", ""))
    assert "(beyond the stability limit): beyond." in said
