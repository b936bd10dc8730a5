import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from privaudit.report.figures.figure_style import to_png
from privaudit_tools.tables.outcomes import TableOutcome
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import schedule
from privaudit_tools.tables.stored import read_stored
from privaudit_tools.tables.table import UtilityTable
from privaudit_tools.tables.utility_figure import utility_figure
from privaudit_tools.tables.utility_table import (
    as_markdown,
    stored_markdown,
    write_utility_table,
)
from tests.conftest import Cli

PLAN: dict[str, Any] = {
    "title": "Two | methods",
    "source": "Nobody, table 1.",
    "notes": ["The model has seen the class names."],
    "seeds": [1, 2, 3],
    "metrics": ["local", "mix"],
    "rows": [
        {"label": "PromptFL", "trainer": "promptfl", "skip_columns": ["ε 0.4"]},
        {"label": "DP-FPL", "trainer": "dp-fpl"},
    ],
    "columns": [
        {"label": "none"},
        {"label": "ε 0.4", "settings": {"epsilon": 0.4}},
    ],
    "paper": {"local": {"PromptFL": {"none": "94.45±0.30"}, "DP-FPL": {"none": 96.0}}},
}


def table_of(
    *, errors: Mapping[str, str] | None = None, rounds: int = 12, **changes: Any
) -> UtilityTable:
    """Make a table of made-up runs: local accuracy is 0.8 + seed / 100."""
    plan = TablePlan.model_validate(PLAN | changes)
    planned = schedule(plan)
    outcomes = {}
    for run in planned.runs:
        value = 0.8 + run.fields["seed"] / 100
        values: Any = {"local": {"last10": value, "last": value + 0.005}}
        epsilon = run.settings.get("epsilon")
        proved = {"released": epsilon and 0.9 * epsilon, "server": None}
        outcomes[run.short_hash] = TableOutcome(
            run.short_hash,
            f"run-{run.short_hash}",
            rounds,
            min(rounds, 10),
            2.5,
            values,
            epsilon,
            1e-5,
            proved,
            "one record, add/remove-one",
        )
        if error := (errors or {}).get(run.label):
            outcomes[run.short_hash] = TableOutcome(run.short_hash, error=error)
    return UtilityTable(plan, planned, outcomes)


def test_cells_hold_mean_spread_and_the_papers_number() -> None:
    text = as_markdown(table_of())
    assert "|  | none | ε 0.4 |" in text
    assert "| PromptFL | 82.00 ± 1.00 (94.45±0.30) |  |" in text
    assert "| DP-FPL | 82.00 ± 1.00 (96.0) | 82.00 ± 1.00 |" in text
    assert "own classes, mean of the last 10 rounds" in text
    assert "mean ± standard deviation over 3 seeds (1, 2, 3); in brackets" in text
    assert "differ by at most 0.50" in text
    assert "- The model has seen the class names." in text
    assert "rows in the paper's order, in the means alone: 0 of 1 (none)." in text


def test_what_a_seed_moves_is_said() -> None:
    assert "the noise. The data, the backbone and its pretraining stay: ±" in (
        as_markdown(table_of())
    )
    text = as_markdown(table_of(fields={"image_column": "picture{seed}"}))
    assert "the noise, and what the plan names by {seed}. The data, the" in text
    assert "its pretraining stay otherwise: ±" in text


def test_a_metric_that_no_run_has_is_a_dash() -> None:
    text = as_markdown(table_of())
    assert "| DP-FPL | \u2013 | \u2013 |" in text.partition("mixture")[2]


def test_claimed_and_certified_epsilons_stand_in_a_table_of_their_own() -> None:
    text = as_markdown(table_of())
    whom = "one record, add/remove-one"
    assert f"| ε 0.4 | 0.4 | 1e-5 | {whom} | none | none | none | 0.36 |" in text
    without = as_markdown(table_of(columns=[{"label": "none"}], rows=PLAN["rows"][1:],
                                   paper={}))  # fmt: skip
    assert "certified" not in without
    assert "in brackets" not in without


def test_a_failed_run_is_said_in_its_cell_and_with_its_reason() -> None:
    text = as_markdown(table_of(errors={"PromptFL, none, seed 2": "No | room\nleft"}))
    assert "| PromptFL | **1 of 3 failed** (94.45±0.30) |  |" in text
    assert "- PromptFL, none, seed 2: No \\| room left" in text


def test_a_table_whose_runs_all_failed_is_written_too(tmp_path: Path) -> None:
    rows, columns = ("PromptFL", "DP-FPL"), ("none", "ε 0.4")
    labels = [f"{r}, {c}, seed {s}" for r in rows for c in columns for s in (1, 2, 3)]
    table = table_of(errors=dict.fromkeys(labels, "no"))
    text = write_utility_table(table, tmp_path, "t")
    assert ("**3 of 3 failed**" in text, "Computed in" in text) == (True, False)
    text = stored_markdown(read_stored(tmp_path / "t.json"))
    assert "| PromptFL | **3 of 3 failed** (94.45±0.30) |" in text


@pytest.mark.parametrize(
    ("rounds", "over", "says"),
    [
        (100, "last10", ", mean of the last 10 rounds\n"),
        (10, "last10", ", mean of all 10 rounds\n"),
        (1, "last10", ", last round\n"),
        (100, "last", ", last round\n"),
        (4, "last10", "Rounds: 4. The means over the last 4 rounds and those of the l"),
        (1, "last10", "Rounds: 1; measured after the last.\n"),
    ],
)
def test_what_a_number_is_taken_over_is_said(rounds: int, over: str, says: str) -> None:
    assert says in as_markdown(table_of(rounds=rounds, over=over))


def test_groups_of_columns_are_tables_of_their_own() -> None:
    columns = [{"label": "1", "group": "A"}, {"label": "1", "group": "B"}]
    text = as_markdown(table_of(columns=columns, paper={}, rows=PLAN["rows"][1:]))
    assert text.count("**A**\n\n|  | 1 |\n") == 2
    assert text.count("**B**") == 2


def test_one_seed_has_no_spread() -> None:
    text = as_markdown(table_of(seeds=[2]))
    assert "| PromptFL | 82.00 (94.45±0.30) |" in text
    assert "Per cent, from 1 seed (2)" in text


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_files_hold_every_run_and_every_cell(tmp_path: Path) -> None:
    table = table_of()
    text = write_utility_table(table, tmp_path / "out", "name")
    folder = tmp_path / "out"
    assert (folder / "name.md").read_text() == text
    assert (folder / "name.png").read_bytes().startswith(b"\x89PNG")
    cells = read(folder / "name.csv")
    assert len(cells) == 3 * 2 * 2  # cells, metrics, last ten or last
    first = cells[0]
    assert (first["row"], first["metric"], first["over"]) == (
        "PromptFL", "local", "last10",
    )  # fmt: skip
    assert float(first["low"]) == pytest.approx(82 - 4.3027 / 3**0.5, abs=1e-3)
    assert (first["n"], first["paper"], first["paper_sd"]) == ("3", "94.45±0.30", "0.3")
    runs = read(folder / "name-runs.csv")
    assert len(runs) == 9
    assert {run["run"] for run in runs} == {f"run-{run['digest']}" for run in runs}
    assert float(runs[0]["local_last10"]) == pytest.approx(81)
    content = json.loads((folder / "name.json").read_text())
    assert content["unit"] == "per cent"
    assert len(content["cells"]) == 12
    assert content["runs"][0]["seconds"] == 2.5
    assert content["plan"]["title"] == "Two | methods"


@pytest.mark.parametrize("columns", [1, 2])
def test_the_picture_is_the_same_every_time(columns: int) -> None:
    """With one column its rows are dots, with several they are lines."""
    rows = PLAN["rows"][1:]  # the other one skips a column
    table = table_of(columns=PLAN["columns"][:columns], paper={}, rows=rows)
    assert to_png(utility_figure(table)) == to_png(utility_figure(table))


def test_a_panel_for_each_metric_and_group() -> None:
    columns = [
        {"label": "1", "group": "A"},
        {"label": "2", "group": "A", "fields": {"clients": 2}},
        {"label": "1", "group": "B"},
    ]
    table = table_of(columns=columns, paper={}, rows=PLAN["rows"][1:], across="k")
    axes = utility_figure(table).axes
    assert len(axes) == 4
    assert [axis.get_xlabel() for axis in axes] == ["k, A", "k, A", "k, B", "k, B"]
    assert len(axes[0].get_xticks()) == 2


PANELS: dict[str, Any] = {
    "columns": [{"label": "accuracy"}],
    "rows": [
        {"label": "FedAvg", "trainer": "lora-fedavg"},
        {"label": "FedRand", "trainer": "fedrand"},
    ],
    "elsewhere": {"dataset": "scenes-far"},
    "panels": [
        {"label": "Server", "metrics": ["server BLEU-1", "server CIDEr-D"]},
        {
            "label": "Leaks",
            "metrics": ["client max-renyi image 10 % order 2", "server token-loss"],
            "heads": ["image", "loss"],
        },
        {"metrics": ["elsewhere BLEU-1", "megabytes per round"]},
    ],
    "paper": {
        "server CIDEr-D": {"FedAvg": "111.08±0.76", "FedRand": 112},
        "server token-loss": {"FedAvg": 70, "FedRand": 60},
    },
}
SEEN = {
    "server BLEU-1": 0.75,
    "server CIDEr-D": 1.1,
    "client max-renyi image 10 % order 2": 0.55,
    "server token-loss": 0.7,
    "elsewhere BLEU-1": 0.5,
    "megabytes per round": 3.2,
}


def panels_of(**changes: Any) -> UtilityTable:
    """Make a table of made-up runs; FedRand's numbers are a tenth below FedAvg's."""
    asked = {k: v for k, v in PLAN.items() if k != "metrics"} | PANELS | changes
    plan = TablePlan.model_validate(asked)
    planned, outcomes = schedule(plan), {}
    for run in planned.runs:
        share = 1.0 if run.trainer == "lora-fedavg" else 0.9
        values: Any = {
            metric: {"last10": share * value, "last": share * value}
            for metric, value in SEEN.items()
        }
        outcomes[run.short_hash] = TableOutcome(run.short_hash, "r", 30, 1, 2.0, values)
    return UtilityTable(plan, planned, outcomes)


def test_panels_have_metrics_as_columns_and_units_of_their_own() -> None:
    text = as_markdown(panels_of())
    assert "## Server, last round\n\n|  | BLEU-1 | CIDEr-D |" in text
    assert "| FedAvg | 75.00 ± 0.00 | 110.00 ± 0.00 (111.08±0.76) |" in text
    assert "in the paper's order, in the means alone: 0 of 1 (CIDEr-D)." in text
    assert "|  | image | loss |" in text
    assert "| FedRand | 49.50 ± 0.00 | 63.00 ± 0.00 (60) |" in text
    assert "in the means alone: 1 of 1 (loss)." in text
    assert "## Last round\n\n|  | elsewhere BLEU-1 | megabytes per round |" in text
    assert "| FedRand | 45.00 ± 0.00 | 2.88 ± 0.00 |" in text


def test_units_that_are_no_shares_are_explained_where_they_are_used() -> None:
    text = as_markdown(panels_of())
    for words in (
        "CIDEr-D is coco-caption's CIDEr times 100",
        "50 is random guessing",
        "Megabytes (10⁶ bytes), up plus down",
        "On scenes-far, which no client trains on",
    ):
        assert words in text
        assert words not in as_markdown(table_of())


def test_rows_of_one_run_show_the_model_that_they_say() -> None:
    rows = [
        {"label": "rebuilt", "trainer": "lora-fedavg", "whose": "client"},
        {"label": "common", "trainer": "lora-fedavg", "whose": "server"},
    ]
    name = "max-renyi image 10 % order 2"
    panels = [{"metrics": [name, "token-loss"]}]
    table = panels_of(rows=rows, panels=panels, paper={}, elsewhere=None)
    assert len(table.schedule.runs) == 3
    text = as_markdown(table)
    assert f"|  | {name} | token-loss |" in text
    assert "| rebuilt | 55.00 ± 0.00 | \u2013 |" in text
    assert "| common | \u2013 | 70.00 ± 0.00 |" in text


def test_a_metric_can_have_a_table_of_its_own_over_columns() -> None:
    columns = [{"label": "1"}, {"label": "2", "fields": {"clients": 2}}]
    metrics = ["server BLEU-1", "server token-loss", "elsewhere BLEU-1"]
    table = panels_of(columns=columns, panels=[], metrics=metrics, paper={})
    text = as_markdown(table)
    assert "## BLEU-1 of the server's model, last round" in text
    assert "## AUROC of token-loss on the server's model, last round" in text
    assert "## BLEU-1 of the server's model on scenes-far, last round" in text
    assert len(utility_figure(table).axes) == 3


def test_a_success_is_none_of_an_auroc_and_only_the_last_model_is_attacked() -> None:
    metrics = ["server token-loss success", "megabytes per round"]
    table = panels_of(
        panels=[], metrics=metrics, paper={}, over="last10", elsewhere=None
    )
    text = as_markdown(table)
    assert "## Success of token-loss on the server's model, last round\n" in text
    assert "|  | Success |" in text
    assert "## Megabytes per round, mean of all rounds\n" in text


def test_files_of_panels_hold_the_units(tmp_path: Path) -> None:
    write_utility_table(panels_of(), tmp_path, "p")
    content = json.loads((tmp_path / "p.json").read_text())
    assert content["units"] == {
        "server CIDEr-D": "hundredths",
        "megabytes per round": "megabytes per round",
    }
    cells = read(tmp_path / "p.csv")
    found = {(c["row"], c["metric"]): float(c["mean"]) for c in cells}
    assert found["FedAvg", "server CIDEr-D"] == pytest.approx(110)
    assert found["FedAvg", "megabytes per round"] == pytest.approx(3.2)
    assert float(read(tmp_path / "p-runs.csv")[0]["server BLEU-1_last"]) == 75


def test_the_picture_of_panels_has_an_axis_for_each_metric() -> None:
    table = panels_of()
    axes = utility_figure(table).axes
    assert [axis.get_xlabel() for axis in axes] == [
        "Server: BLEU-1, %",
        "Server: CIDEr-D, hundredths",
        "Leaks: image, %",
        "Leaks: loss, %",
        "elsewhere BLEU-1, %",
        "megabytes per round",
    ]
    assert to_png(utility_figure(table)) == to_png(utility_figure(table))


TOML = """
title = "Digits"
seeds = [1]
metrics = ["local", "neighbour"]
[fields]
rounds = 1
partition = "pathological"
[[rows]]
label = "zero-shot"
trainer = "zero-shot"
[[rows]]
label = "PromptFL"
trainer = "promptfl"
settings = { epochs = 1 }
[[columns]]
label = "3"
fields = { clients = 3 }
[[columns]]
label = "11"
fields = { clients = 11 }
only_for = ["zero-shot"]
"""


def test_the_command_prints_the_table_and_fails_with_a_failed_cell(
    tmp_path: Path, cli: Cli
) -> None:
    plan = tmp_path / "digits.toml"
    plan.write_text(TOML)
    out = tmp_path / "out"
    code, printed, err = cli("table", plan, "--out", out)
    assert code == 1
    assert (out / "digits.md").read_text() == printed
    assert "| zero-shot | " in printed
    assert "**1 of 1 failed**" in printed
    assert "there are 10 classes" in printed
    assert "3/3 PromptFL, 3, seed 1: local " in err
    assert "1 of 3 runs failed" in err
    plan.write_text(TOML.replace("11", "2"))
    code, printed, err = cli("table", plan, "--rows", "zero", "--out", out)
    assert (code, "1/2 zero-shot, 3, seed 1" in err, "/3" in err) == (0, True, False)
    assert "| PromptFL | " in printed
    assert "Run: " not in printed


def test_a_check_counts_and_runs_nothing(tmp_path: Path, cli: Cli) -> None:
    plan = tmp_path / "digits.toml"
    plan.write_text(TOML)
    code, _, err = cli("table", plan, "--check")
    assert (code, "each client needs a class of its own" in err) == (2, True)
    whole = TOML.replace("clients = 11", "clients = 5")
    plan.write_text(whole)
    code, said, _ = cli("table", plan, "--check")
    assert (code, "3 runs, all of them valid. Cost: at most" in said) == (0, True)
    plan.write_text(whole.replace("epochs", "epoch"))
    code, _, err = cli("table", plan, "--check")
    assert (code, "has no parameter 'epoch'" in err) == (2, True)
    (tmp_path / "pets").mkdir()
    pets = ("--field", "dataset=oxford-pets", "--field", f"data={tmp_path / 'pets'}")
    plan.write_text(whole)
    code, _, err = cli("table", plan, "--check", *pets)
    assert (code, "There is no split_zhou_OxfordPets.json" in err) == (2, True)
    assert not (tmp_path / "runs").exists()
