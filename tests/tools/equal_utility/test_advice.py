"""Sentences to act on: made results in which each holds alone, and some where none does."""

from typing import Any

import pytest

from privaudit_tools.equal_utility.advice import advice
from privaudit_tools.equal_utility.benchmark import BenchmarkResult, Seal
from privaudit_tools.equal_utility.choosing import choose
from privaudit_tools.equal_utility.document import as_markdown
from privaudit_tools.equal_utility.outcomes import Look, RunRecord
from privaudit_tools.equal_utility.page import blocks_of
from privaudit_tools.equal_utility.plan import BenchmarkPlan

SEEDS = {"tuning_seeds": [1], "evaluation_seeds": [2, 3, 4, 5, 6]}
ROWS = {"none": "zero-shot", "other": "fedotp", "proved": "dp-fpl"}
PLAN = BenchmarkPlan.model_validate(
    {
        "title": "Made",
        **SEEDS,
        "reference": {"label": "stopping", "trainer": "promptfl", "stops": [1, 2, 4]},
        "methods": [{"label": n, "trainer": one} for n, one in ROWS.items()],
    }
)
Numbers = tuple[float, float]  # utility and leak
PROVED = {"proved": 8.0}  # epsilon by row
EVEN: dict[str, Numbers] = {
    "none": (0.80, 0.50), "first": (0.85, 0.60), "next": (0.85, 0.60), "last": (0.90, 0.70),
    "other": (0.85, 0.60), "proved": (0.85, 0.60),
}  # fmt: skip
"""All on one line, as no method and no stop is better than another."""


def told(spread: float = 0.002, /, **numbers: Numbers) -> list[str]:
    result = made(spread, numbers)
    return advice(result, result.judged)


def made(spread: float, numbers: dict[str, Numbers]) -> BenchmarkResult:
    """Return a result whose seeds differ by the spread, and otherwise in each row."""
    seeds = [*PLAN.tuning_seeds, *PLAN.evaluation_seeds]
    means = EVEN | numbers
    rows = [("stopping", ""), *((name, "as given") for name in ROWS)]
    runs = [
        run(means, row, setting, seed, spread)
        for seed in seeds
        for row, setting in rows
    ]
    choices = choose(PLAN, runs)
    seal = Seal(on="2026-11-26", digest=PLAN.digest, choices=choices,
                evaluation_seeds=PLAN.evaluation_seeds)  # fmt: skip
    return BenchmarkResult(plan=PLAN, seal=seal, runs=runs, tpr={})


def run(
    means: dict[str, Numbers], row: str, setting: str, seed: int, spread: float
) -> RunRecord:
    def look(name: str, rounds: int) -> Look:
        noise = spread * ((len(name) * seed * 3) % 7 - 3)
        utility, leak = means[name]
        found: dict[str, Any] = {"local": utility + noise, "neighbour": 0.7 + noise}
        if name == "other":
            found["neighbour"] = 0.3 + noise
        return Look(rounds=rounds, utility=found, leaks={"strong": leak - noise})

    named = {"first": 1, "next": 2, "last": 4} if row == "stopping" else {row: 10}
    looks = [look(name, rounds) for name, rounds in named.items()]
    return RunRecord(row=row, setting=setting, seed=seed, run=f"{row}-{seed}",
                     looks=looks, certified={"server": PROVED.get(row)}, delta=1e-5,
                     unit=f"one {'client' if row == 'other' else 'record'}")  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "starts", "holds"),
    [
        ({"other": (0.85, 0.50), "proved": (0.81, 0.6)},
         "Train by other (as given) rather than stopping: at equal ",
         ["AUROC is 0.100 [0.100, 0.100] lower (n = 5, p < 0.001)",
          "own classes alone: on others' it reaches 0.302 [0.2"]),
        ({}, "If all attacks have to be bounded, train by proved (as given)",
         ["certified ε 8 against the server (one record, δ 1e-5), and",
          "0.050 [0.042, 0.058] above no training (n = 5, p < 0.001)"]),
        ({"proved": (0.79, 0.5)},
         "Release the model untrained rather than train it by proved: ",
         [", less than 0.02 (n = 5, p "]),
        ({"other": (0.85, 0.70), "proved": (0.81, 0.6)},
         "Take stopping rather than other (as given), whose AUROC at ",
         ["is 0.100 [0.100, 0.100] higher (n = 5, p < 0.001)"]),
    ],
)  # fmt: skip
def test_what_one_method_is_worth_is_a_sentence(
    numbers: dict[str, Numbers], starts: str, holds: list[str]
) -> None:
    (said,) = (one for one in told(**numbers) if one.startswith(starts))
    assert all(one in said for one in holds)


def test_what_a_sum_gives_is_said_though_it_is_a_control(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none, other, proved = PLAN.methods
    sums = {"fields": {"secure_aggregation": "masked"}, "control": True}
    methods = none, other.model_copy(update=sums), proved
    monkeypatch.setitem(globals(), "PLAN", PLAN.model_copy(update={"methods": methods}))
    said = told(other=(0.85, 0.50), proved=(0.81, 0.6))[0]
    assert said.startswith("Let the server learn sums alone: at equal accuracy on own ")
    assert "of other (as given) is 0.100 [0.100, 0.100] lower than that of " in said
    assert "sums" not in "".join(told(other=(0.85, 0.60), proved=(0.81, 0.6)))


def test_proofs_of_other_units_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a client stands beside that of a record, though it is worth less."""
    monkeypatch.setitem(PROVED, "other", 30.0)
    record, client, *_ = told(other=(0.83, 0.57))
    assert "train by proved (as given): certified ε 8 against" in record
    assert (
        "by other (as given): certified ε 30 against the server (one client" in client
    )


def test_an_earlier_stop_is_named_where_it_costs_little() -> None:
    said = told(first=(0.895, 0.60))
    assert any(s.startswith("Stop promptfl after round 1 and not 4: ") for s in said)
    assert not any(s.startswith("Stop") for s in told(first=(0.875, 0.60)))
    # p = 0.03 alone: of two stops that were looked at, 0.06.
    assert not any(s.startswith("Stop") for s in told(0.005, first=(0.89, 0.60)))


@pytest.mark.parametrize("spread", [0.03, 0.1])
def test_where_seeds_differ_as_much_as_methods_nothing_is_said(spread: float) -> None:
    wanted = {"other": (0.85, 0.58), "proved": (0.81, 0.5), "first": (0.895, 0.69)}
    assert told(spread, **wanted) == []
    text = as_markdown("Made", blocks_of(made(spread, wanted), "command", ""))
    assert "these numbers support none of three sentences" in text
    assert "Train by" not in text


def test_there_are_three_at_most() -> None:
    everything = {"first": (0.895, 0.60), "proved": (0.85, 0.7), "other": (0.85, 0.4)}
    said = told(**everything)
    assert [one.split()[0] for one in said] == ["Train", "If", "Stop"]
    text = as_markdown("Made", blocks_of(made(0.002, everything), "command", ""))
    assert "these numbers support three of three sentences" in text
