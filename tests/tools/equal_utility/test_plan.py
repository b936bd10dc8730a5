from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.federation.trainer import TRAINERS
from privaudit.runs.config import make_config
from privaudit_tools.equal_utility.benchmark import entries_of
from privaudit_tools.equal_utility.plan import BenchmarkPlan, read_benchmark_plan
from tests.places import ROOT

PLAN = ROOT / "docs" / "benchmark" / "digits.toml"
GIVEN: dict[str, Any] = {
    "title": "t",
    "tuning_seeds": [1],
    "evaluation_seeds": [2, 3, 4],
    "reference": {"label": "curve", "trainer": "promptfl", "stops": [1, 2]},
    "methods": [
        {"label": "none", "trainer": "zero-shot"},
        {"label": "a", "trainer": "promptfl", "knob": "epochs", "values": [1, 2]},
    ],
}
KNOB = {"label": "b", "trainer": "c", "knob": "d"}


def test_the_committed_plan_has_every_trainer_of_its_task_and_valid_runs() -> None:
    plan = read_benchmark_plan(PLAN)
    named = {method.trainer for method in plan.methods}
    classifying = {
        name
        for name in TRAINERS.names()
        if not TRAINERS.package_of(name) and make_config(name).task == "classification"
    }
    assert named == classifying
    assert not set(plan.quickly.evaluation_seeds) & set(plan.evaluation_seeds)
    assert {len(m.values) for m in plan.methods} == {0, 4}
    assert len(plan.evaluation_seeds) == 10
    assert all(len(m.values) * len(plan.tuning_seeds) in (0, 8) for m in plan.methods)


def test_a_knob_is_a_parameter_or_else_a_run_setting() -> None:
    methods = [*GIVEN["methods"], {
        "label": "b", "trainer": "promptfl", "knob": "shots", "values": ["none", 8],
    }]  # fmt: skip
    plan = BenchmarkPlan.model_validate(GIVEN | {"methods": methods})
    found = {(e.row, e.setting): e.run for e in entries_of(plan, [1])}
    assert found["a", "epochs 2"].settings == {"epochs": 2}
    assert found["b", "shots 8"].fields == {"shots": 8, "seed": 1}
    assert found["b", "shots none"].fields == {"shots": None, "seed": 1}
    assert found["curve", ""].fields == {"rounds": 2, "seed": 1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluation_seeds": [1, 2, 3]}, "the seeds hold 1 more than once"),
        ({"evaluation_seeds": [2, 3]}, "at least 3 items"),
        ({"methods": GIVEN["methods"][1:]}, "begins with one row .* there are 0"),
        ({"methods": GIVEN["methods"] * 2}, "the labels hold none, a more than once"),
        ({"reference": GIVEN["reference"] | {"stops": [2, 1]}}, "do not rise"),
        ({"methods": [KNOB]}, "has a knob or"),
        ({"methods": [KNOB | {"knob": "seed", "values": [1]}]}, "is no setting: seed"),
        ({"methods": [KNOB | {"values": [1, 1]}]}, "of 'b' hold 1 more than once"),
        ({"fields": {"measured_rounds": 1}}, "utility is needed after round 1, and"),
        ({"fields": {"secure_aggregation": "masked"}}, "masked sums are one view"),
    ],
)
def test_what_is_no_plan_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        entries_of(BenchmarkPlan.model_validate(GIVEN | changes), [1])


def test_a_file_that_is_no_plan_says_where(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.read_text().replace("shadows = 8\n", 'shadows = "many"\n', 1))
    with pytest.raises(ConfigError, match=r"is no plan of a benchmark: shadows: "):
        read_benchmark_plan(path)


def test_quick_takes_what_the_plan_says() -> None:
    with pytest.raises(ConfigError, match=r"has no table \[quick\]"):
        _ = BenchmarkPlan.model_validate(GIVEN).quickly
    quick = {
        "methods": ["none", "a"], "stops": [1], "values": 1, "shadows": 5,
        "tuning_seeds": [5], "evaluation_seeds": [6, 7, 8], "fields": {"clients": 2},
        "attacks": ["rmia", "lira"],
    }  # fmt: skip
    plan = BenchmarkPlan.model_validate(GIVEN | {"quick": quick})
    assert plan.quickly.methods[1].values == (1,)
    assert plan.quickly.reference.stops == (1,)
    assert (plan.quickly.shadows, plan.quickly.fields) == (5, {"clients": 2})
    assert plan.quickly.attacked == "`server-reconstruct` (rmia, lira alone)"
    assert plan.digest == BenchmarkPlan.model_validate(GIVEN).digest
    assert plan.digest != plan.quickly.digest
    with pytest.raises(ConfigError, match=r"No attack is called 'x'\..* lira, "):
        entries_of(plan.model_copy(update={"attacks": ("x",)}), [1])
    alone = BenchmarkPlan.model_validate(GIVEN | {"quick": quick | {"methods": ["a"]}})
    with pytest.raises(ConfigError, match=r"What --quick takes .* begins with one row"):
        _ = alone.quickly
    with pytest.raises(ValueError, match="quick names 'b'"):
        BenchmarkPlan.model_validate(GIVEN | {"quick": quick | {"methods": ["b"]}})
